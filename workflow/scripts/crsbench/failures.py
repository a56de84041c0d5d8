"""The failed jobs of a run, each with its reason, in one place at the end.

Snakemake's own lines on a failure stand between those of the jobs that went on, and those of a
cluster say that a job failed, not why. The reason is in the job's log.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

#: Snakemake's log on a failure, with indented details, and on a success, which a retry may have.
_ENDED = re.compile(
    r"^Error in rule (?P<rule>\w+):\n(?P<details>(?: {4}.*\n)+)|^Finished jobid: (?P<finished>\d+)",
    re.MULTILINE,
)
_DETAIL = re.compile(r"^ {4}(message|jobid|log): (.+)$", re.MULTILINE)
_HINT = " (check log file(s) for error details)"
#: What `crsbench.jobs` writes into a job's log.
_REASON = re.compile(r"^\S+ \S+ ERROR crsbench\.jobs: (.+)$", re.MULTILINE)


class Failure(NamedTuple):
    """A job that failed.

    Attributes
    ----------
    rule
        Its rule.
    logs
        The job's log, and on a cluster the scheduler's.
    message
        What Snakemake says of the failure, or nothing.
    """

    rule: str
    logs: Sequence[Path]
    message: str


def read_failures(snakemake_logs: Iterable[str]) -> list[Failure]:
    """Return the jobs that failed and were not made by a retry, each with its last failure.

    Parameters
    ----------
    snakemake_logs
        Paths of the logs of one call of Snakemake; it names as many as it has log handlers.
    """
    failures: dict[str, Failure] = {}
    text = "".join(Path(log).read_text(encoding="utf-8") for log in snakemake_logs)
    for ended in _ENDED.finditer(text):
        if ended["finished"]:
            failures.pop(ended["finished"], None)
            continue
        details = dict(_DETAIL.findall(ended["details"]))
        paths = map(Path, details.get("log", "").removesuffix(_HINT).split(", "))
        message = details.get("message", "").partition(". ")[0].removeprefix("None")
        logs = [path for path in paths if path.suffix == ".log"]
        failures[details.get("jobid", "")] = Failure(ended["rule"], logs, message)
    return list(failures.values())


def failure_lines(failures: Sequence[Failure], *, since: float) -> list[str]:
    """Return what a run ends with: its failed jobs, their reasons and logs.

    Parameters
    ----------
    failures
        As `read_failures` returns them.
    since
        When the run began, in seconds as `time.time` counts; older logs are of other runs.
    """
    if not failures:
        return []
    jobs = "1 job" if len(failures) == 1 else f"{len(failures)} jobs"
    lines = [f"crsbench: {jobs} failed:"]
    for failure in failures:
        lines.append(f"  {failure.rule}: {_reason(failure, since)}")
        lines += [f"    log: {log}" for log in failure.logs]
    return lines


def _reason(failure: Failure, since: float) -> str:
    """Return the reason in the job's own log; a job that was killed has none there."""
    for log in failure.logs[:1]:
        if log.is_file() and log.stat().st_mtime >= since:
            for reason in _REASON.findall(log.read_text(encoding="utf-8")):
                return reason
    return failure.message or "it left no reason; it may have been killed"
