"""The perceptron and the nearest neighbours against scikit-learn's, in seconds a cell.

**Perceptron.** Same width, batches, learning rate and epochs, no early end. Scikit-learn's is Adam
with an l2 penalty for AdamW with decoupled decay, Glorot's initial weights for PyTorch's, and one
fit at a time for the seeds side by side. Its loop over a seed's fractions counts five times. Of the
larger train split one fit at full labels is timed on both sides; a cell is as many epochs over as
many rows.

**Nearest neighbours.** Nothing is fitted; a cell is the scoring of its calibration side and of the
test side under 16 conditions. One test side is timed under all fits, on scikit-learn's side under
one seed's, and scaled by rows and seeds. Ours scores the distinct fits, 21 of 25.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier

from crsbench.config import read_yaml
from crsbench.probes.base import Features, Subset
from crsbench.probes.knn import fit_knn, score_knn
from crsbench.probes.mlp import fit_mlp
from probe_shapes import FRACTIONS, N_SEEDS, SHAPES, Shape, make, subsets
from timing import medians, timed

SETTINGS = read_yaml(Path(__file__).parents[1] / "config" / "config.yaml")
SMALL, LARGE = SHAPES[1], SHAPES[2]
#: Rows that are scored in a cell, in test sides: one under 16 conditions, and half a one.
SIDES = 16.5
#: Rows of a test side, in those of the train split.
TEST = 2 / 7


def others_table() -> Iterator[str]:
    """Yield the table."""
    yield "| probe | train split | timed | ours, s a cell | scikit-learn, s a cell | ratio |"
    yield "|---|---|---|--:|--:|--:|"
    yield mlp_row(SMALL, [Subset(s.label_fraction, seed, s.rows) for s, seed in _every_fit(SMALL)])
    yield mlp_row(LARGE, [Subset(1.0, 0, np.arange(LARGE.n))])
    yield knn_row(SMALL, rounds=3)
    yield knn_row(LARGE, rounds=1)


def _every_fit(shape: Shape) -> Iterator[tuple[Subset, int]]:
    """Yield the 25 training sets of a cell and their seeds: the perceptron's seed matters."""
    for subset in subsets(shape.n):
        for seed in range(N_SEEDS) if subset.label_fraction == 1 else (subset.seed,):
            yield subset, seed


def mlp_row(shape: Shape, sets: list[Subset]) -> str:
    """Return the perceptron's line, timed on some of a cell's training sets."""
    features, labels = make(shape)
    of_first = [subset for subset in sets if subset.seed == 0]
    whole = len(sets) > 1
    in_cell = 1.0 if whole else N_SEEDS * sum(FRACTIONS)
    ours, theirs = medians(
        [
            lambda: timed(lambda: _mlp_ours(shape, features, labels, sets))[0],
            lambda: timed(lambda: _mlp_theirs(features, labels, of_first))[0],
        ],
        rounds=1,
    )
    timed_on = "all fits; scikit-learn 1 of 5 seeds" if whole else "one fit at full labels"
    theirs *= N_SEEDS if whole else in_cell
    return _line("perceptron", shape, timed_on, ours * in_cell, theirs)


def _mlp_ours(shape: Shape, features: Features, labels: NDArray[Any], sets: list[Subset]) -> object:
    about = {"task": "multiclass", "n_classes": shape.n_classes}
    return fit_mlp(features, labels, sets, threads=1, **about, **SETTINGS["mlp"])


def _mlp_theirs(features: Features, labels: NDArray[Any], sets: list[Subset]) -> None:
    settings = SETTINGS["mlp"]
    for subset in sets:
        MLPClassifier(
            (settings["hidden"],),
            alpha=settings["weight_decay"],
            batch_size=min(settings["batch_size"], len(subset.rows)),
            learning_rate_init=settings["learning_rate"],
            max_iter=settings["epochs"],
            n_iter_no_change=settings["epochs"],
            random_state=0,
        ).fit(features[subset.rows], labels[subset.rows])


def knn_row(shape: Shape, *, rounds: int) -> str:
    """Return the nearest neighbours' line."""
    n_queries = round(TEST * shape.n)
    features, labels = make(shape._replace(n=shape.n + n_queries))
    train, queries = features[: shape.n], features[shape.n :]
    works: list[Callable[[], object]] = [
        lambda: _knn_ours(shape, train, labels[: shape.n], queries),
        lambda: _knn_theirs(shape, train, labels, queries),
    ]
    ours, theirs = medians([lambda work=work: timed(work)[0] for work in works], rounds=rounds)
    timed_on = f"{n_queries:,} queries of a cell's {round(SIDES * n_queries):,}"
    return _line("nearest neighbours", shape, timed_on, ours * SIDES, theirs * SIDES * N_SEEDS)


def _knn_ours(shape: Shape, train: Features, labels: NDArray[Any], queries: Features) -> object:
    about = {"task": "multiclass", "n_classes": shape.n_classes}
    fits = fit_knn(train, labels, list(subsets(shape.n)), threads=1, **about, **SETTINGS["knn"])
    return score_knn(fits, queries, threads=1)


def _knn_theirs(shape: Shape, train: Features, labels: NDArray[Any], queries: Features) -> None:
    for subset in subsets(shape.n, seeds=1):
        probe = KNeighborsClassifier(SETTINGS["knn"]["n_neighbours"], algorithm="brute")
        probe.fit(train[subset.rows], labels[subset.rows]).predict_proba(queries)


def _line(probe: str, shape: Shape, timed_on: str, ours: float, theirs: float) -> str:
    return f"| {probe} | {shape} | {timed_on} | {ours:.1f} | {theirs:.1f} | {theirs / ours:.1f} |"
