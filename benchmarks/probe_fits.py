"""A cell's 25 fits: ours against scikit-learn's, in time, objective and gradient.

Scikit-learn is timed twice: at our tolerance, in float64, since in float32 it stops short of it;
and at its defaults, tol 1e-4 and 100 iterations, in float32. Where that would take minutes, it is
timed on one seed and on some of the labels. A seed counts as five then, and the labels, taken
evenly from the rarest to the most frequent, as all that have both values in the subset.

Both sides have the same number of threads: ours fits side by side on them, each with a BLAS of one
thread; scikit-learn's are those of BLAS.

At full labels the five seeds have the same rows. A loop over the grid fits them five times, and
so scikit-learn's time of a cell counts them; its time of the distinct fits, 21 of 25, counts them
once.

Objective and gradient of both are computed here, in float64, from the coefficients alone.
"""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp, softmax
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from crsbench.probes.base import Features, Floats, Subset
from crsbench.probes.logistic import LogisticFit, fit_logistic
from probe_shapes import N_SEEDS, Shape, make, subsets
from timing import timed

TOLERANCE = 1e-6
MAX_ITERATIONS = 10_000
#: Of scikit-learn at our tolerance, and at its default.
EQUAL, DEFAULT = {"tol": TOLERANCE, "max_iter": MAX_ITERATIONS}, {}


class Problem(NamedTuple):
    """What one call of scikit-learn fits: rows of the train split and their classes.

    Attributes
    ----------
    place
        Of the subset among those of the cell.
    targets
        Numbers of the classes that occur, from 0.
    columns
        The columns of our coefficients that belong to it: classes that occur, or the label.
    in_cell, distinct
        How many of the cell's fits, and of its distinct fits, it stands for.
    """

    place: int
    rows: NDArray[np.int64]
    targets: NDArray[np.int64]
    columns: NDArray[np.int64]
    in_cell: float
    distinct: float


def problems(shape: Shape, labels: NDArray[Any]) -> Iterator[Problem]:
    """Yield what scikit-learn is timed on."""
    for place, subset in enumerate(subsets(shape.n)):
        if subset.seed >= shape.seeds:
            continue
        alike = N_SEEDS / shape.seeds
        distinct = 1.0 if subset.label_fraction == 1 else alike
        in_cell = float(N_SEEDS) if subset.label_fraction == 1 else alike
        for rows, targets, columns, share in _parts(shape, labels, subset):
            yield Problem(place, rows, targets, columns, in_cell * share, distinct * share)


def _parts(
    shape: Shape, labels: NDArray[Any], subset: Subset
) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any], float]]:
    """Yield rows, targets, columns of what is timed of a subset, and how many each stands for."""
    if shape.task == "multiclass":
        held, targets = np.unique(labels[subset.rows], return_inverse=True)
        if len(held) > 1:
            yield subset.rows, targets, held, 1.0
        return
    of_rows = labels[subset.rows]
    positives, negatives = (of_rows == 1).sum(axis=0), (of_rows == 0).sum(axis=0)
    fitted = np.flatnonzero((positives > 0) & (negatives > 0))
    fitted = fitted[np.argsort(positives[fitted], kind="stable")]
    n_timed = min(shape.columns, len(fitted))
    middles = ((np.arange(n_timed) + 0.5) * len(fitted) / max(n_timed, 1)).astype(int)
    for label in fitted[middles]:
        known = np.flatnonzero(~np.isnan(of_rows[:, label]))
        targets = of_rows[known, label].astype(np.int64)
        yield subset.rows[known], targets, np.array([label]), len(fitted) / n_timed


class Theirs(NamedTuple):
    """Seconds of scikit-learn for a cell and for its distinct fits; what each problem came to."""

    in_cell: float
    distinct: float
    fitted: list[tuple[Floats, Floats]]


def fit_theirs(features: Floats, parts: list[Problem], settings: dict[str, float]) -> Theirs:
    """Fit with scikit-learn, and scale its time."""
    in_cell, distinct, fitted = 0.0, 0.0, []
    for part in parts:
        rows, probe = features[part.rows], LogisticRegression(**settings)
        seconds, _ = timed(lambda rows=rows, probe=probe, part=part: probe.fit(rows, part.targets))
        in_cell += seconds * part.in_cell
        distinct += seconds * part.distinct
        fitted.append((probe.coef_.T.astype(float), probe.intercept_.astype(float)))
    return Theirs(in_cell, distinct, fitted)


def fit_ours(
    shape: Shape, features: Features, labels: NDArray[Any], *, threads: int
) -> list[LogisticFit]:
    """Fit a whole cell."""
    return fit_logistic(
        features,
        labels,
        list(subsets(shape.n)),
        threads=threads,
        task=shape.task,
        n_classes=shape.n_classes,
        tolerance=TOLERANCE,
        max_iterations=MAX_ITERATIONS,
    )


class Optimality(NamedTuple):
    """The mean objective and the largest component of its gradient."""

    objective: float
    gradient_norm: float


def optimality(rows: Floats, targets: NDArray[Any], weights: Floats, bias: Floats) -> Optimality:
    """Assess weights ``(D, C)`` of a softmax, or ``(D, 1)`` of a single logit."""
    logits = rows @ weights + bias
    if logits.shape[1] == 1:
        losses = np.logaddexp(0, logits[:, 0]) - targets * logits[:, 0]
        residuals = expit(logits) - targets[:, None]
    else:
        truth = targets[:, None] == np.arange(logits.shape[1])
        losses = logsumexp(logits, axis=1) - logits[truth]
        residuals = softmax(logits, axis=1) - truth
    objective = (losses.sum() + 0.5 * np.sum(weights**2)) / len(rows)
    by_weights = np.abs(rows.T @ residuals + weights).max()
    by_bias = np.abs(residuals.sum(axis=0)).max()
    return Optimality(float(objective), float(max(by_weights, by_bias) / len(rows)))


def coefficients(fitted: LogisticFit, part: Problem) -> tuple[Floats, Floats]:
    """Return ours as scikit-learn has them: of two classes a single logit."""
    weights, bias = fitted.coefficients[:, part.columns], fitted.intercept[part.columns]
    if len(part.columns) == 2:
        return weights[:, 1:] - weights[:, :1], bias[1:] - bias[:1]
    return weights, bias


def assess(
    features: Floats, parts: list[Problem], fitted: list[tuple[Floats, Floats]]
) -> list[Optimality]:
    """Assess the weights and intercepts of each problem."""
    return [
        optimality(features[part.rows], part.targets, *found)
        for part, found in zip(parts, fitted, strict=True)
    ]


class Comparison(NamedTuple):
    """A line of the table: seconds of a cell, and what the two came to at equal gradient norm.

    Attributes
    ----------
    ours, equal, equal_distinct, default, default_distinct
        Seconds; `equal_distinct` and `default_distinct` of scikit-learn for the distinct fits
        alone.
    excess
        The largest objective of ours less scikit-learn's.
    norm, their_norm
        Largest components of all gradients.
    iterations
        The most that a fit of ours took.
    unconverged
        Fits of ours that did not converge.
    """

    shape: Shape
    ours: float
    equal: float
    equal_distinct: float
    default: float
    default_distinct: float
    excess: float
    norm: float
    their_norm: float
    iterations: int
    unconverged: int


def compare(shape: Shape, data_root: Path | None, *, threads: int) -> Comparison:
    """Time a cell of ours and of scikit-learn's in turns, ours twice in each."""
    features, labels = make(shape, data_root=data_root)
    wide, parts = features.astype(np.float64), list(problems(shape, labels))
    ours, equal, default = [], [], []
    with threadpool_limits(threads):
        for _ in range(shape.rounds):
            ours.append(timed(lambda: fit_ours(shape, features, labels, threads=threads))[0])
            tight = fit_theirs(wide, parts, EQUAL)
            equal.append((tight.in_cell, tight.distinct))
            seconds, fits = timed(lambda: fit_ours(shape, features, labels, threads=threads))
            ours.append(seconds)
            loose = fit_theirs(features, parts, DEFAULT)
            default.append((loose.in_cell, loose.distinct))
    mine = assess(wide, parts, [coefficients(fits[part.place], part) for part in parts])
    theirs = assess(wide, parts, tight.fitted)
    return Comparison(
        shape,
        *(
            statistics.median(seconds)
            for seconds in (ours, *zip(*equal, strict=True), *zip(*default, strict=True))
        ),
        excess=max(a.objective - b.objective for a, b in zip(mine, theirs, strict=True)),
        norm=max(found.gradient_norm for found in mine),
        their_norm=max(found.gradient_norm for found in theirs),
        iterations=max(fitted.iterations for fitted in fits),
        unconverged=sum(fitted.status == "not_converged" for fitted in fits),
    )
