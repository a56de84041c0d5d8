"""Peak memory of fits, each in a process of its own.

    python benchmarks/probe_memory.py none|ours|default|equal FOLDER    a train split at full labels
    python benchmarks/probe_memory.py write|largest FOLDER    the largest cell of the benchmark

print the peak in GiB of a process that does the one thing: `none` only reads the data, `default`
and `equal` are scikit-learn's, in float32 at its default and in float64 at our tolerance. Nothing
here imports what these processes do not need, such as torch.
"""

import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from crsbench.features.table import read_features, write_features
from crsbench.probes.base import Features, Subset
from crsbench.probes.cell import TrainingSide, fit_cell
from crsbench.probes.logistic import fit_logistic

#: Rows and features of CheXpert's train split with the widest encoder.
LARGEST = 133_860, 2_560
SETTINGS = {"threads": 1, "tolerance": 1e-6}
_STATUS = Path("/proc/self/status")


def can_tell() -> bool:
    """Return whether the system tells the peak memory of a process: Linux does."""
    return _STATUS.is_file()


def memory_table(splits: Iterable[tuple[str, Features, NDArray[Any]]]) -> Iterator[str]:
    """Yield a table of peak memory of train splits, each a name, features and labels."""
    yield (
        "| train split at full labels | data alone, GiB | ours | scikit-learn, equal norm "
        "| scikit-learn, default |"
    )
    yield "|---|--:|--:|--:|--:|"
    for name, features, labels in splits:
        with tempfile.TemporaryDirectory() as folder:
            np.save(Path(folder) / "features.npy", features)
            np.save(Path(folder) / "wide.npy", features.astype(np.float64))
            np.save(Path(folder) / "labels.npy", labels)
            peaks = [peak_of(side, folder) for side in ("none", "ours", "equal", "default")]
        yield f"| {name} | {' | '.join(f'{peak:.3f}' for peak in peaks)} |"


def largest_line() -> str:
    """Return the peak memory of the largest cell."""
    with tempfile.TemporaryDirectory() as folder:
        peak_of("write", folder)
        peak = peak_of("largest", folder)
    matrix = LARGEST[0] * LARGEST[1] * 4 / 2**30
    return (
        f"The largest cell, {LARGEST[0]:,} x {LARGEST[1]:,} x 14 labels, from its Parquet table to "
        f"its fits at 25 and 100 % labels: {peak:.2f} GiB at the peak; the matrix has {matrix:.2f}."
    )


def peak_of(what: str, folder: str) -> float:
    """Return the peak memory in GiB of a process that does one thing."""
    command = [sys.executable, __file__, what, folder]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(finished.stdout)


def _peak() -> float:
    """Return the peak memory of this process in GiB.

    Not `getrusage`: its count starts with what the process that started this one had used.
    """
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) / 2**20


def _fit(side: str, folder: Path) -> None:
    """Read features in the precision that a side needs, and fit."""
    features = np.load(folder / ("wide.npy" if side == "equal" else "features.npy"))
    labels = np.load(folder / "labels.npy")
    if side == "ours":
        _fit_ours(features, labels, [Subset(1.0, 0, np.arange(len(features)))], max_iterations=1000)
    elif side != "none":
        _fit_theirs(features, labels)


def _fit_ours(
    features: Features, labels: NDArray[Any], sets: list[Subset], *, max_iterations: int
) -> Any:
    n_classes = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1
    task = "multilabel" if labels.ndim == 2 else "multiclass"
    about = {"task": task, "n_classes": n_classes, "max_iterations": max_iterations}
    return fit_logistic(features, labels, sets, **about, **SETTINGS)


def _fit_theirs(features: Features, labels: NDArray[Any]) -> None:
    """Fit for a few iterations, and two of the labels: memory does not grow with more."""
    for targets in [labels] if labels.ndim == 1 else labels.T[:2]:
        known = ~np.isnan(targets)
        rows = features if known.all() else features[known]
        LogisticRegression(max_iter=5).fit(rows, targets[known])


def _write_largest(folder: Path) -> None:
    features = np.random.default_rng(0).standard_normal(LARGEST, dtype=np.float32)
    keys = pl.DataFrame({"sample": _names()})
    write_features(keys, features, path=folder / "clean.parquet", metadata={})


def _names() -> list[str]:
    return [f"patient{row:06d}/study1/view1_frontal.jpg" for row in range(LARGEST[0])]


def _fit_largest(folder: Path) -> None:
    """Read and fit as the workflow does, for a few iterations."""
    names, rng = _names(), np.random.default_rng(1)
    labels = (rng.random((len(names), 14)) < 0.2).astype(float)
    fractions = np.where(rng.random(len(names)) < 0.25, 0.25, 1.0)
    fit_cell(
        TrainingSide(names, read_features(folder / "clean.parquet", samples=names)[1], labels),
        fit=partial(_fit_ours, max_iterations=3),
        seed_matters=False,
        subsamples=pl.DataFrame({"seed": 0, "sample": names, "label_fraction": fractions}),
        label_fractions=(0.25, 1.0),
        seeds=(0,),
    )


def main(what: str, folder: str) -> None:
    """Do one thing and print the peak memory."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    works = {"write": _write_largest, "largest": _fit_largest}
    with threadpool_limits(1):
        works.get(what, partial(_fit, what))(Path(folder))
    print(_peak())


if __name__ == "__main__":
    main(*sys.argv[1:])
