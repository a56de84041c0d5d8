"""Prefetching with the real workflow: what was brought is not made again by the run."""

import os
import re
import subprocess
import sys

import pytest

from .conftest import TINY, Project

pytestmark = pytest.mark.workflow


def prefetch(project: Project, *options: str) -> subprocess.CompletedProcess[str]:
    """Run ``crsbench prefetch`` on an offline machine with an empty cache."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(project.folder / "workflow" / "scripts"),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(project.folder / "cache"),
        "XDG_CACHE_HOME": str(project.folder / "cache"),
    }
    code = "import sys; from crsbench.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", code, "prefetch", *options],
        cwd=project.folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_one_failure_stops_no_other_encoder_and_finished_weights_stay(tiny_copy):
    selection = ("--config", "encoders=[resnet50,tiny_vit,tiny_statistics]")
    finished = prefetch(tiny_copy, *TINY, *selection)
    assert finished.returncode == 1, finished.stderr
    assert re.search(r"^weights +2$", finished.stderr, re.MULTILINE)  # resnet50 and tiny_vit
    assert "weights of 2 of 3 encoders" in finished.stdout
    assert "missing: resnet50: model.safetensors of timm/resnet50" in finished.stdout
    assert finished.stderr.endswith("crsbench: no weights of resnet50; the lines above say why\n")
    assert (tiny_copy.folder / "results" / "tiny" / "weights" / "tiny_vit.safetensors").is_file()
