"""Runs of the real workflow, each in its own copy of the project."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTENT = ("Snakefile", "slurm", "config", "envs", "profiles", "resources", "workflow")
TINY = ("--configfile", "config/tiny.yaml")


@dataclass
class Finished:
    """A finished call of Snakemake."""

    status: int
    output: str

    @property
    def jobs(self) -> dict[str, int]:
        """How many jobs of each rule it planned or ran, without the target rule."""
        table = re.search(r"\njob +count\n-[- ]*\n(.*?)\ntotal ", self.output, re.DOTALL)
        if table is None:
            return {}
        counts = Counter(
            {name: int(n) for name, n in re.findall(r"^(\w+) +(\d+)$", table[1], re.MULTILINE)}
        )
        counts.pop("all", None)
        return dict(counts)


@dataclass
class Project:
    """A copy of the project's files in a folder of its own."""

    folder: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start Snakemake in the copy."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "workflow" / "scripts")}
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *arguments],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def snakemake(self, *arguments: str) -> Finished:
        """Run Snakemake in the copy."""
        process = self.start(*arguments)
        output, _ = process.communicate()
        return Finished(process.returncode, output)

    def ran(self, *arguments: str) -> Finished:
        """Run Snakemake, which must succeed."""
        finished = self.snakemake(*arguments)
        assert finished.status == 0, finished.output
        return finished

    def crsbench(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command ``crsbench`` of the copy."""
        code = "import sys; from crsbench.cli import main; sys.exit(main(sys.argv[1:]))"
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder / "workflow" / "scripts")},
            capture_output=True,
            text=True,
            check=False,
        )

    def duplicate(self, folder: Path) -> "Project":
        """Copy the project with its results, as a backup does: times are kept."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Project(folder)

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace one piece of text in a file; it must be there once."""
        file = self.folder / path
        text = file.read_text()
        assert text.count(old) == 1, f"{path}: {text.count(old)} x {old!r}"
        file.write_text(text.replace(old, new))


def copy_of_the_project(folder: Path) -> Project:
    """Copy the project's own files, as a clone has them: without results, with new times."""
    folder.mkdir()
    for name in CONTENT:
        source = ROOT / name
        if source.is_symlink():
            (folder / name).symlink_to(source.readlink())
        elif source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return Project(folder)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A copy of the project without results."""
    return copy_of_the_project(tmp_path / "project")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A finished tiny run; tests that change something duplicate it first."""
    project = copy_of_the_project(tmp_path_factory.mktemp("tiny") / "project")
    project.ran(*TINY)
    return project


@pytest.fixture
def tiny_copy(tiny: Project, tmp_path: Path) -> Project:
    """A copy of the finished tiny run, to change."""
    return tiny.duplicate(tmp_path / "copy")


def csv_bytes(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Return the bytes of the CSV files of a run."""
    return {name: (folder / name).read_bytes() for name in names}


Edit = Callable[[Project], None]
