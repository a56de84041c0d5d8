"""What a run says of its failed jobs at its end."""

import os
from pathlib import Path

import pytest

from crsbench.failures import failure_lines, read_failures

REASON = "resnet50: the weights are not there; run `crsbench prefetch`"
SLURM_LOG = "/run/.snakemake/slurm_logs/rule_weights/resnet50/36.log"
STARTED = 1_000.0


def failed(rule: str, jobid: int, logs: str, message: str = "None") -> str:
    return (
        f"[Mon Nov 30 08:15:41 2026]\nError in rule {rule}:\n    message: {message}\n"
        f"    jobid: {jobid}\n    output: results/x\n"
        f"    log: {logs} (check log file(s) for error details)\n"
    )


def on_slurm(status: str) -> str:
    message = (
        f"SLURM-job '36' failed, SLURM status is: '{status}'. Detailed failure reason unavailable "
        "(status command is not 'sacct').For further error details see the log files."
    )
    logs = f"logs/resnet50.log, provenance/resnet50.json, {SLURM_LOG}"
    return failed("weights", 29, logs, message) + "    external_jobid: 36\n"


FINISHED = "[Mon Nov 30 08:16:00 2026]\nFinished jobid: {} (Rule: weights)\n1 of 2 steps done\n"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run's folder with the log of one job, which failed after the run had begun."""
    monkeypatch.chdir(tmp_path)
    log = Path("logs/resnet50.log")
    log.parent.mkdir()
    log.write_text(
        "2026-11-30 08:16:30,100 INFO crsbench.jobs: ERROR crsbench.jobs: not this\n"
        f"2026-11-30 08:16:37,760 ERROR crsbench.jobs: {REASON}\n"
        "Traceback (most recent call last):\ncrsbench.errors.WeightsError: nor this\n"
    )
    os.utime(log, (STARTED + 60, STARTED + 60))
    return log


def lines_of(*texts: str) -> list[str]:
    logs = []
    for number, text in enumerate(texts):
        logs.append(f"snakemake_{number}.log")
        Path(logs[-1]).write_text(text)
    return failure_lines(read_failures(logs), since=STARTED)


@pytest.mark.usefixtures("run")
def test_the_reason_is_that_of_the_jobs_own_log():
    logs = "logs/resnet50.log, provenance/resnet50.json"
    assert lines_of(failed("weights", 29, logs)) == [
        "crsbench: 1 job failed:",
        f"  weights: {REASON}",
        "    log: logs/resnet50.log",
    ]


@pytest.mark.usefixtures("run")
def test_on_a_cluster_the_schedulers_log_is_named_too():
    assert lines_of(on_slurm("FAILED"))[1:] == [
        f"  weights: {REASON}",
        "    log: logs/resnet50.log",
        f"    log: {SLURM_LOG}",
    ]


def test_a_job_that_was_killed_has_what_the_scheduler_says(run):
    run.write_text("2026-11-30 08:16:30,100 INFO crsbench.jobs: begun\n")
    (_, line, *_) = lines_of(on_slurm("OUT_OF_MEMORY"))
    assert line == "  weights: SLURM-job '36' failed, SLURM status is: 'OUT_OF_MEMORY'"


def test_a_log_of_an_earlier_run_gives_no_reason(run):
    os.utime(run, (STARTED - 60, STARTED - 60))
    logs = "logs/resnet50.log, provenance/resnet50.json"
    (_, line, *_) = lines_of(failed("weights", 29, logs))
    assert line == "  weights: it left no reason; it may have been killed"


@pytest.mark.usefixtures("run")
def test_a_job_that_never_wrote_a_log_is_named(tmp_path):
    (_, line, *logs) = lines_of(failed("probe", 3, "logs/other.log, provenance/other.json"))
    assert line == "  probe: it left no reason; it may have been killed"
    assert logs == ["    log: logs/other.log"]


@pytest.mark.usefixtures("run")
def test_each_job_is_named_once_and_not_if_a_retry_made_it():
    other = failed("probe", 3, "logs/other.log")
    text = (
        on_slurm("FAILED") + other + on_slurm("FAILED") + FINISHED.format(12) + on_slurm("FAILED")
    )
    assert lines_of(text)[0] == "crsbench: 2 jobs failed:"
    assert lines_of(text, text)[0] == "crsbench: 2 jobs failed:"
    assert [line for line in lines_of(text + FINISHED.format(29)) if "weights" in line] == []
    assert lines_of(text + FINISHED.format(29) + FINISHED.format(3)) == []


def test_without_failed_jobs_nothing_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert lines_of(FINISHED.format(29)) == []
    assert failure_lines(read_failures([]), since=STARTED) == []
