"""The Makefile's first minutes: one clear line where Python will not do."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env=outside,  # not as a part of the make that runs the tests
        capture_output=True,
        text=True,
        check=False,
    )


def interpreter(folder: Path, body: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            'case "$2" in *platform*) echo 3.10.13;; *) exit 1;; esac',
            "Python 3.11 to 3.13 is needed, {python} is 3.10.13; call make PYTHON=",
        ),
        (
            'case "$2" in *ensurepip*) exit 1;; *) exit 0;; esac',
            "{python} lacks venv; install it",
        ),
    ],
)
def test_an_unfit_python_is_one_clear_line(checkout, body, message):
    python = interpreter(checkout, body)
    finished = make(checkout, "install", f"PYTHON={python}")
    assert finished.returncode != 0
    said = [line for line in finished.stderr.splitlines() if line.startswith("crsbench:")]
    assert len(said) == 1
    assert message.format(python=python) in said[0]
    assert not (checkout / ".venv").exists()


def test_a_python_that_is_not_there_is_one_clear_line(checkout):
    finished = make(checkout, "install", "PYTHON=no-such-python")
    assert "crsbench: no-such-python is not installed; call make PYTHON=" in finished.stderr


def test_the_stamp_depends_on_the_lock_and_is_touched_last(checkout):
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "installed").touch()
    assert "up to date" in make(checkout, "-n", ".venv/installed").stdout
    later = (checkout / ".venv" / "installed").stat().st_mtime + 1
    os.utime(checkout / "requirements" / "lock.txt", (later, later))
    steps = make(checkout, "-n", "install").stdout.splitlines()
    assert steps[-1] == "touch .venv/installed"


def test_one_variable_takes_torch_from_another_index(checkout):
    steps = make(checkout, "-n", "install", "TORCH_INDEX=https://example.org/cpu").stdout
    (line,) = [line for line in steps.splitlines() if "requirements/torch.txt" in line]
    assert "--index-url https://example.org/cpu" in line
    assert "--index-url" not in make(checkout, "-n", "install").stdout
