"""What a run says of its failed jobs at its end."""

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from crsbench.failures import collect_failures, failure_lines

REASON = "resnet50: the weights are not there; run `crsbench prefetch`"
LOGS = ["logs/resnet50.log", "provenance/resnet50.json"]
SLURM_LOG = "slurm_logs/36.log"
STARTED = 1_000.0
NO_REASON = "no reason in its log; Snakemake's lines above may have one"


@dataclass
class Job:
    """A failed job as Snakemake keeps it."""

    name: str
    jobid: int
    log: list[str]

    @property
    def rule(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.name)


WEIGHTS = Job("weights", 29, LOGS)
PROBE = Job("probe", 3, ["logs/cell.log", "provenance/cell.json"])


def said(job: Job, message: str = "None", *, slurm_log: str | None = None) -> str:
    """Return what Snakemake's log has of a failure."""
    logs = ", ".join([*job.log, *([slurm_log] if slurm_log else [])])
    return (
        f"[Mon Nov 30 08:15:41 2026]\nError in rule {job.name}:\n    message: {message}\n"
        f"    jobid: {job.jobid}\n    output: results/x\n"
        f"    log: {logs} (check log file(s) for error details)\n    external_jobid: 36\n"
        f"Trying to restart job {job.jobid}.\n[Mon Nov 30 08:15:41 2026]\nrule {job.name}:\n"
        f"    log: {', '.join(job.log)}\n    jobid: {job.jobid}\n"
    )


def on_slurm(status: str) -> str:
    message = (
        f"SLURM-job '36' failed, SLURM status is: '{status}'. Detailed failure reason unavailable "
        "(status command is not 'sacct').For further error details see the log files."
    )
    return said(WEIGHTS, message, slurm_log=SLURM_LOG)


REFUSED = (
    "SLURM sbatch failed. The error message was 'sbatch: error: invalid partition: nosuch\n"
    "sbatch: error: Batch job submission failed'.\n    sbatch call:\n        sbatch -p nosuch\n"
    "For further error details see the cluster/cloud log."
)


@pytest.fixture
def log(tmp_path, monkeypatch):
    """The log of one job, which failed after the run had begun."""
    monkeypatch.chdir(tmp_path)
    path = Path(LOGS[0])
    for folder in (path.parent, Path(SLURM_LOG).parent):
        folder.mkdir()
    Path(SLURM_LOG).touch()
    path.write_text(
        "2026-11-30 08:16:30,100 INFO crsbench.jobs: ERROR crsbench.jobs: not this\n"
        f"2026-11-30 08:16:37,760 ERROR crsbench.jobs: {REASON}\n"
        "2026-11-30 08:16:37,761 INFO crsbench.jobs: which was raised so:\n"
        "Traceback (most recent call last):\ncrsbench.errors.WeightsError: nor this\n"
    )
    os.utime(path, (STARTED + 60, STARTED + 60))
    return path


def lines_of(*failed: Job, text: str = "") -> list[str]:
    Path("snakemake.log").write_text(text)
    return failure_lines(collect_failures(failed, ["snakemake.log"]), since=STARTED)


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("text", [said(WEIGHTS), ""], ids=["said", "quiet"])
def test_the_reason_is_that_of_the_jobs_own_log(text):
    assert lines_of(WEIGHTS, text=text) == [
        "crsbench: 1 job failed:",
        f"  weights: {REASON}",
        "    log: logs/resnet50.log",
    ]


@pytest.mark.usefixtures("log")
def test_on_a_cluster_the_schedulers_log_is_named_too():
    assert lines_of(WEIGHTS, text=on_slurm("FAILED"))[1:] == [
        f"  weights: {REASON}",
        "    log: logs/resnet50.log",
        f"    log: {SLURM_LOG}",
    ]


def test_a_job_that_was_killed_has_what_the_scheduler_says(log):
    log.write_text("2026-11-30 08:16:30,100 INFO crsbench.jobs: begun\n")
    line = lines_of(WEIGHTS, text=on_slurm("TIMEOUT"))[1]
    assert line == "  weights: SLURM-job '36' failed, SLURM status is: 'TIMEOUT'."


@pytest.mark.usefixtures("log")
def test_the_reason_of_an_earlier_try_is_called_so():
    text = on_slurm("FAILED") + on_slurm("NODE_FAIL")
    assert lines_of(WEIGHTS, text=text)[1:3] == [
        "  weights: SLURM-job '36' failed, SLURM status is: 'NODE_FAIL'.",
        f"    an earlier try: {REASON}",
    ]


def test_jobs_that_the_scheduler_refuses_are_told_apart(log):
    log.unlink()
    refused = [Job("weights", number, [f"logs/{number}.log"]) for number in (1, 2, 12)]
    text = "".join(said(job, REFUSED) for job in refused)
    reason = (
        "SLURM sbatch failed. The error message was 'sbatch: error: invalid partition: nosuch "
        "sbatch: error: Batch job submission failed'."
    )
    lines = lines_of(*refused, text=text)
    assert lines[0] == "crsbench: 3 jobs failed:"
    assert lines[1:] == [f"  weights: {reason}"] * 3


def test_a_reason_of_several_lines_is_whole(log):
    text = log.read_text().replace(REASON, f"{REASON}\nnot fetched (HTTP 503)")
    log.write_text(text)
    assert lines_of(WEIGHTS)[1:3] == [f"  weights: {REASON}", "    not fetched (HTTP 503)"]


def test_a_log_of_an_earlier_run_gives_no_reason(log):
    os.utime(log, (STARTED - 60, STARTED - 60))
    assert lines_of(WEIGHTS, text=said(WEIGHTS))[1] == f"  weights: {NO_REASON}"


@pytest.mark.usefixtures("log")
def test_a_job_without_a_log_is_named_and_rules_are_in_order():
    lines = lines_of(WEIGHTS, PROBE, text=said(WEIGHTS) + said(PROBE))
    assert lines[:3] == [
        "crsbench: 2 jobs failed:",
        f"  probe: {NO_REASON}",
        f"  weights: {REASON}",
    ]


def test_commas_in_paths_and_broken_bytes_do_no_harm(log):
    folder = Path("my, results")
    folder.mkdir()
    moved = folder / log.name
    moved.write_bytes(log.read_bytes() + "µ".encode()[:1])
    job = Job("weights", 29, [str(moved), str(folder / "resnet50.json")])
    Path("snakemake.log").write_bytes(said(job, slurm_log=SLURM_LOG).encode() + b"\xb5\n")
    failures = collect_failures([job], ["snakemake.log"])
    assert failure_lines(failures, since=STARTED)[1:] == [
        f"  weights: {REASON}",
        f"    log: {moved}",
        f"    log: {SLURM_LOG}",
    ]


def test_without_failed_jobs_nothing_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert lines_of(text=said(WEIGHTS)) == []
