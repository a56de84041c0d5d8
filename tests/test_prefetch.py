"""Prefetching: what Snakemake is asked for, and what is said of the encoders that failed."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from crsbench.config import read_yaml
from crsbench.errors import WeightsError
from crsbench.plan import Plan, make_plan
from crsbench.prefetch import prefetch_weights

ROOT = Path(__file__).parents[1]
FULL = ROOT / "config" / "config.yaml"
LOG = """2026-01-01 00:00:00,000 INFO httpx: HTTP Request: HEAD https://huggingface.co
2026-01-01 00:00:01,000 ERROR crsbench.jobs: {}
Traceback (most recent call last):
"""


@pytest.fixture
def plan(monkeypatch, tmp_path) -> Plan:
    monkeypatch.chdir(ROOT)
    merged = {**read_yaml(FULL), "store": str(tmp_path), "encoders": ["resnet50", "medgemma"]}
    return make_plan(merged, files=[FULL])


@pytest.fixture
def snakemake(monkeypatch, tmp_path):
    """Return how a stand-in for Snakemake ends, which encoders it makes, and how it was called."""
    called = SimpleNamespace(status=0, makes=(), command=[], environment={})

    def run(command, *, env):
        called.command, called.environment = command, env
        (tmp_path / "weights").mkdir()
        for name in called.makes:
            (tmp_path / "weights" / f"{name}.safetensors").touch()
        return SimpleNamespace(returncode=called.status)

    monkeypatch.setattr(subprocess, "run", run)
    return called


def test_only_the_weights_stage_is_asked_for_on_this_machine(
    plan, snakemake, monkeypatch, tmp_path
):
    monkeypatch.setenv("SNAKEMAKE_PROFILE", "slurm")
    snakemake.makes = ("resnet50", "medgemma")
    lines = list(prefetch_weights(plan, ["--config", "store=x"]))
    targets = [f"{tmp_path}/weights/{name}.safetensors" for name in snakemake.makes]
    assert snakemake.command[1:5] == ["-m", "snakemake", *targets]
    assert snakemake.command[-2:] == ["--config", "store=x"]
    assert "--keep-going" in snakemake.command
    assert snakemake.command[5:7] == ["--executor", "local"]
    assert "SNAKEMAKE_PROFILE" not in snakemake.environment
    assert lines == [f"weights of 2 of 2 encoders are in {tmp_path}/weights"]


def test_every_failure_is_listed_with_its_reason_after_the_rest_was_made(plan, snakemake, tmp_path):
    snakemake.status, snakemake.makes = 1, ("resnet50",)
    log = tmp_path / "logs" / "weights" / "medgemma.log"
    log.parent.mkdir(parents=True)
    log.write_text(LOG.format("medgemma: google/medgemma-4b-it is gated; ask for access"))
    lines = prefetch_weights(plan, [])
    assert next(lines).startswith("weights of 1 of 2 encoders")
    assert next(lines) == "missing: medgemma: google/medgemma-4b-it is gated; ask for access"
    with pytest.raises(WeightsError, match="no weights of medgemma; the lines above say why"):
        next(lines)


def test_a_job_that_never_ran_is_listed_as_well(plan, snakemake):
    snakemake.status = 1
    lines = prefetch_weights(plan, [])
    assert next(lines).startswith("weights of 0 of 2 encoders")
    assert "resnet50: no job reported why" in next(lines)


def test_a_failure_of_snakemake_itself_is_no_success(plan, snakemake):
    snakemake.status, snakemake.makes = 1, ("resnet50", "medgemma")
    with pytest.raises(WeightsError, match="snakemake ended with status 1"):
        list(prefetch_weights(plan, []))
