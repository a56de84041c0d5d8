"""The slurm profile on a real Slurm, where this machine has one (``make acceptance``)."""

import shutil
import subprocess

import pytest
import yaml

from .conftest import TINY, Project
from .test_runs import csv_files

pytestmark = pytest.mark.acceptance
OFFLINE = ("--config", "encoders=[tiny_resnet,tiny_statistics,resnet50]")


@pytest.fixture
def small(project: Project) -> Project:
    """The project with a profile whose jobs fit on a node of 2 cores without GPUs."""
    asked = ["sinfo", "--noheader"]
    if shutil.which("sinfo") is None or subprocess.run(asked, check=False, timeout=60).returncode:
        pytest.skip("no Slurm answers on this machine")
    path = project.folder / "profiles" / "slurm" / "profile.yaml"
    profile = yaml.safe_load(path.read_text())
    for resources in (profile["default-resources"], *profile["set-resources"].values()):
        resources["cpus_per_task"] = 1
        resources["mem_mb"] = "2500 * attempt"
        resources.pop("gpu", None)
    profile["slurm-init-seconds-before-status-checks"] = 3
    path.write_text(yaml.safe_dump(profile))
    return project


def test_a_run_on_slurm_gives_the_bytes_of_a_local_run(small, tiny):
    finished = small.ran("--profile", "slurm", *TINY)
    jobs = sum(finished.jobs.values())
    assert finished.output.count("has been submitted with SLURM jobid") == jobs >= 30
    assert csv_files(small) == csv_files(tiny)


def test_a_job_that_fails_on_slurm_is_tried_again_and_the_run_ends_with_its_reason(
    small, monkeypatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    finished = small.snakemake("--profile", "slurm", "--until", "weights", *TINY, *OFFLINE)
    assert finished.status != 0
    assert finished.output.count("Trying to restart") == 2
    summary = finished.output.partition("crsbench: 1 job failed:\n")[2].splitlines()
    assert summary[0].startswith(
        "  weights: resnet50: model.safetensors of timm/resnet50.tv_in1k is"
    )
    assert summary[1] == "    log: results/tiny/logs/weights/resnet50.log"
    assert "slurm_logs/rule_weights/resnet50/" in summary[2]
    store = small.folder / "results" / "tiny"
    made = {path.stem for path in (store / "weights").glob("*.safetensors")}
    assert made == {"tiny_resnet", "tiny_statistics"}
