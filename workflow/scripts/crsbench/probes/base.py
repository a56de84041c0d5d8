"""What a probe is: how a cell fits it, scores with it, and learns how each fit ended.

A module ``probes/NAME.py`` offers ``PROBE``, a `Probe`. Its fits of a cell are made in one call, so
that what they share is made once; one call also scores a set under all of them.

Logits have all C columns whatever the training rows held. Minus infinity is the logit of a class
that a softmax gives probability zero; NaN is the logit of a label that could not be fitted.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from crsbench.arrays import Floats
from crsbench.splits import Task

Features = NDArray[np.float32]

#: How a fit ended; `completed`: after a fixed budget, or with nothing to optimise.
Status = Literal["converged", "not_converged", "completed", "single_class", "failed"]
#: The ends after which a fit can score features.
SCORING: frozenset[Status] = frozenset({"converged", "not_converged", "completed"})
#: The reason of a fit that ends as `single_class`.
ONE_VALUE = "no label or class has both values in the training rows"


class Fit(Protocol):
    """A fitted probe, or the typed record of its failure."""

    @property
    def status(self) -> Status:
        """How the fit ended."""

    @property
    def reason(self) -> str | None:
        """What is to be known about the end: why it failed, or that the rows are separable."""

    @property
    def n_train(self) -> int:
        """Number of training rows."""

    @property
    def iterations(self) -> int:
        """Iterations of the optimiser."""

    @property
    def gradient_norm(self) -> float:
        """Largest component of the mean objective's gradient at the end."""

    @property
    def objective(self) -> float:
        """The minimised mean objective."""

    def logits(self, features: NDArray[np.floating]) -> Floats:
        """Score features ``(N, D)``: logits ``(N, C)``."""


@dataclass(frozen=True)
class Subset:
    """One training set of a cell that no other fit has.

    Attributes
    ----------
    label_fraction, seed
        Whose rows they are; `seed` is the first of the seeds that share the fit.
    rows
        Row numbers in the train split, ascending.
    """

    label_fraction: float
    seed: int
    rows: NDArray[np.int64]


def held_classes(labels: NDArray[Any], *, task: Task, n_classes: int) -> NDArray[np.bool_]:
    """Return which classes training rows tell anything about, ``(C,)``.

    Parameters
    ----------
    labels
        ``(n,)`` class indices: the classes that occur, or none where only one does. Multi-label
        data, ``(n, C)`` of 1, 0, and NaN for masked: the labels that have both values.
    """
    if task == "multilabel":
        return (labels == 1).any(axis=0) & (labels == 0).any(axis=0)
    occurs = np.bincount(labels, minlength=n_classes) > 0
    return occurs & (np.count_nonzero(occurs) > 1)


def score_each(fits: Sequence[Fit], features: Features, *, threads: int) -> Floats:
    """Score features ``(N, D)`` under each fit alone, on threads: logits ``(n_fits, N, C)``."""
    with ThreadPoolExecutor(threads) as pool:
        return np.stack(list(pool.map(lambda fitted: fitted.logits(features), fits)))


@dataclass(frozen=True)
class Probe:
    """A kind of probe.

    What its functions return must not depend on ``threads``, the number of threads they may use.

    Attributes
    ----------
    fit
        ``fit(features, labels, subsets, *, task, n_classes, threads, **settings)`` makes all fits
        of a cell, one for each `Subset`, in their order. ``features`` ``(N, D)`` are the whole
        train split's: standardised, float32, C-contiguous, not to be changed; ``labels`` are
        ``(N,)`` class indices, or for multi-label data ``(N, C)`` of 1, 0, and NaN for masked.
        ``settings`` are the probe's own, from its section of the configuration.
    score
        ``score(fits, features, *, threads)`` returns the logits ``(n_fits, N, C)`` of standardised
        features ``(N, D)`` under several fits: `score_each`, unless fewer products will do.
    seed_matters
        Whether two seeds with the same training rows give different fits.
    engine
        ``engine(device, n_numbers)`` returns where to compute for a training matrix of so many
        numbers, given the setting ``fitting.device``; `fit` and `score` take it as ``engine``, and
        its ``name`` is recorded. None for a probe that only the CPU fits.
    """

    fit: Callable[..., Sequence[Fit]]
    score: Callable[..., NDArray[np.floating]]
    seed_matters: bool
    engine: Callable[[str, int], Any] | None = None
