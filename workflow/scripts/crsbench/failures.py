"""The failed jobs of a run, each with its reason, in one place at the end.

Snakemake's own lines on a failure stand between those of the jobs that went on, and those of a
cluster say that a job failed, not why. The reason is in the job's log.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

#: What follows "Error in rule" in Snakemake's log. A message may have lines without an indent.
_ERROR = re.compile(
    r"\w+:\n {4}message: (?P<message>(?s:.*?))\n {4}jobid: (?P<jobid>\d+)\n(?P<rest>( {4}.*\n)*)"
)
_LOGS = re.compile(r"^ {4}log: (.+) \(check log file\(s\) for error details\)$", re.MULTILINE)
#: What the executor of Slurm says to every failure.
_ADVICE = re.compile(
    r"\s*(Detailed failure reason unavailable|sbatch call:|For further error details).*", re.DOTALL
)
#: What `crsbench.jobs` writes into a job's log, until its next entry.
_REASON = re.compile(
    r"^\S+ \S+ ERROR crsbench\.jobs: ((?s:.*?))(?=^\d{4}-\d\d-\d\d \S+ [A-Z]+ |\Z)",
    re.MULTILINE,
)


class FailedJob(Protocol):
    """What is asked of one of Snakemake's jobs; its first log is the one of `crsbench.jobs`."""

    rule: Any
    log: Sequence[str]
    jobid: int


class Failure(NamedTuple):
    """A job that failed.

    Attributes
    ----------
    rule
        Its rule.
    logs
        The job's log, and on a cluster the scheduler's.
    message
        What the scheduler says of the failure, or nothing.
    """

    rule: str
    logs: Sequence[Path]
    message: str


def collect_failures(
    jobs: Iterable[FailedJob], snakemake_logs: Iterable[str | Path]
) -> list[Failure]:
    """Return what is known of failed jobs, in the order of their rules and logs.

    Parameters
    ----------
    jobs
        Those that failed in the end, retries included.
    snakemake_logs
        The logs of this call of Snakemake. With some forms of ``--quiet`` they hold no failures,
        and what a scheduler has said is not known.
    """
    errors: dict[int, Mapping[str, str]] = {}
    for path in snakemake_logs:
        for text in re.split(r"^Error in rule ", _read(Path(path)), flags=re.MULTILINE)[1:]:
            if found := _ERROR.match(text):
                errors[int(found["jobid"])] = found.groupdict()
    in_order = sorted(jobs, key=lambda job: (job.rule.name, *job.log))
    return [_failure(job, errors.get(job.jobid)) for job in in_order]


def _failure(job: FailedJob, error: Mapping[str, str] | None) -> Failure:
    logs = [Path(log) for log in job.log if log.endswith(".log")]
    if error is None:
        return Failure(job.rule.name, logs, "")
    for named in _LOGS.findall(error["rest"]):
        of_scheduler = named.removeprefix(", ".join(job.log)).removeprefix(", ")
        logs += [Path(of_scheduler)] if of_scheduler else []
    message = "" if error["message"] == "None" else _ADVICE.sub("", error["message"])
    return Failure(job.rule.name, logs, " ".join(message.split()))


def failure_lines(failures: Sequence[Failure], *, since: float) -> list[str]:
    """Return what a run ends with: its failed jobs, their reasons, and their logs if they have any.

    Parameters
    ----------
    failures
        As `collect_failures` returns them.
    since
        When the run began, in seconds as `time.time` counts; older logs are of other runs.
    """
    if not failures:
        return []
    jobs = "1 job" if len(failures) == 1 else f"{len(failures)} jobs"
    lines = [f"crsbench: {jobs} failed:"]
    for failure in failures:
        first, *others = _reason(failure, since).splitlines()
        lines.append(f"  {failure.rule}: {first}")
        lines += [f"    {line}" for line in others]
        lines += [f"    log: {log}" for log in failure.logs if log.is_file()]
    return lines


def _reason(failure: Failure, since: float) -> str:
    own = _own_reason(failure.logs, since)
    if failure.message and "'FAILED'" not in failure.message:  # the job did not end by itself
        return f"{failure.message}\nan earlier try: {own}" if own else failure.message
    return own or failure.message or "no reason in its log; Snakemake's lines above may have one"


def _own_reason(logs: Sequence[Path], since: float) -> str:
    """Return the reason in the job's own log; a job that was killed has none there."""
    log = logs[0] if logs else None
    if log is None or not log.is_file() or log.stat().st_mtime < since:
        return ""
    found = _REASON.search(_read(log))
    return "" if found is None else found[1].strip()


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")  # a killed job's may end anywhere
