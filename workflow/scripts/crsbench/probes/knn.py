"""The probe of nearest neighbours: the share of votes among the k nearest training rows.

**Votes.** The k rows nearest to a sample (`crsbench.probes.neighbours`) vote with equal weight, and
a class's probability is its share of the votes: one of k + 1 levels. Its logit is the logarithm of
the votes, minus infinity without a vote. Multi-label data: each label asks the k nearest of its own
unmasked rows, and the logit is the log odds of their votes, infinite where they agree.

**What is not fitted.** Fewer training rows than k: `failed`, not fewer votes, which would be other
levels. One class only: `single_class`. A label whose unmasked rows are fewer than k, or all of one
value, has the logit NaN. There is nothing to optimise: iterations are 0, gradient and objective
have no value.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crsbench.arrays import Bools
from crsbench.probes.base import (
    ONE_VALUE,
    Features,
    Floats,
    Probe,
    Status,
    Subset,
    held_classes,
)
from crsbench.probes.neighbours import Block, Places, TrainRows
from crsbench.splits import Task

#: Neighbours that are looked for at once where labels are masked, per vote of a label.
_SPARE = 4


@dataclass(frozen=True)
class KnnFit:
    """Training rows that vote; see `crsbench.probes.base.Fit`.

    Attributes
    ----------
    train
        The train split, shared by all fits of a cell.
    truth
        ``(N, C)`` of the train split: 1, 0, NaN for masked.
    rows
        Places of the rows that vote.
    fitted
        ``(C,)`` whether the label can be voted on; classes are voted on together.
    """

    train: TrainRows
    truth: Floats
    rows: Places
    fitted: Bools
    task: Task
    n_neighbours: int
    status: Status
    reason: str | None
    iterations: int = 0
    gradient_norm: float = np.nan
    objective: float = np.nan

    @property
    def n_train(self) -> int:
        """Number of training rows."""
        return len(self.rows)

    def logits(self, features: Features) -> Floats:
        """Score features ``(N, D)``: logits ``(N, C)``."""
        return score_knn([self], features, threads=1)[0]


def fit_knn(
    features: Features,
    labels: NDArray[Any],
    subsets: Sequence[Subset],
    *,
    task: Task,
    n_classes: int,
    threads: int,  # noqa: ARG001 - nothing here takes time
    n_neighbours: int,
) -> list[KnnFit]:
    """Prepare the fits of a cell; see `crsbench.probes.base.Probe`.

    Parameters
    ----------
    n_neighbours
        The k of the k nearest.
    """
    train = TrainRows(features)
    truth = labels if task == "multilabel" else _one_hot(labels, n_classes)
    fits = []
    for subset in subsets:
        held = held_classes(labels[subset.rows], task=task, n_classes=n_classes)
        fitted, status, reason = _outcome(held, truth[subset.rows], n_neighbours)
        fit = KnnFit(train, truth, subset.rows, fitted, task, n_neighbours, status, reason)
        fits.append(fit)
    return fits


def _one_hot(labels: NDArray[Any], n_classes: int) -> Floats:
    return (labels[:, None] == np.arange(n_classes)).astype(np.float64)


def _outcome(held: Bools, truth: Floats, n_neighbours: int) -> tuple[Bools, Status, str | None]:
    """Return which labels have logits, and how the fit ends."""
    if not held.any():
        return held, "single_class", ONE_VALUE
    enough = np.count_nonzero(~np.isnan(truth), axis=0) >= n_neighbours
    if not (held & enough).any():
        most = np.count_nonzero(~np.isnan(truth), axis=0).max()
        return held & enough, "failed", f"{most} training rows, but {n_neighbours} are to vote"
    return held & enough, "completed", None


def score_knn(fits: Sequence[KnnFit], features: Features, *, threads: int) -> Floats:
    """Score a set under fits of one cell; see `crsbench.probes.base.Probe`.

    Distances to the train split are estimated once for all fits, then searched side by side.
    """
    with ThreadPoolExecutor(threads) as pool:
        scored = [
            np.stack(list(pool.map(_block_logits, fits, repeat(block))))
            for block in fits[0].train.blocks(features)
        ]
    return np.concatenate(scored, axis=1)


def _block_logits(fit: KnnFit, block: Block) -> Floats:
    k = fit.n_neighbours
    with np.errstate(divide="ignore"):
        if fit.task != "multilabel":
            return np.log(fit.truth[block.nearest(fit.rows, count=k)].sum(axis=1))
        votes = _label_votes(fit, block)
        return np.where(fit.fitted, np.log(votes) - np.log(k - votes), np.nan)


def _label_votes(fit: KnnFit, block: Block) -> Floats:
    """Count the positives among the k nearest unmasked rows of each label, ``(B, L)``."""
    k = fit.n_neighbours
    masked = np.isnan(fit.truth[fit.rows])
    count = min(k * (_SPARE if masked.any() else 1), len(fit.rows))
    truth = fit.truth[block.nearest(fit.rows, count=count)]
    known = ~np.isnan(truth)
    voting = known & (known.cumsum(axis=1) <= k)
    votes = np.count_nonzero(voting & (truth == 1), axis=1).astype(np.float64)
    short = known.sum(axis=1) < k
    for label in np.flatnonzero(short.any(axis=0) & fit.fitted):
        queries = np.flatnonzero(short[:, label])
        own = block.nearest(fit.rows[~masked[:, label]], count=k, queries=queries)
        votes[queries, label] = fit.truth[own, label].sum(axis=1)
    return votes


PROBE = Probe(fit=fit_knn, score=score_knn, seed_matters=False)
