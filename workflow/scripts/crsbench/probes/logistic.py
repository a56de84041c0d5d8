r"""The primary probe: l2-regularised logistic regression, solved to a stated gradient norm.

**Objective.** With rows :math:`x_i`, weights :math:`W` (D, C) and intercepts :math:`b` (C,),

.. math:: f(W, b) = \frac1N \sum_i \ell(x_i W + b, y_i) + \frac\lambda2 \lVert W \rVert^2,
          \qquad \lambda = \frac1N,

which is scikit-learn's C = 1. The intercepts are not penalised. :math:`\ell` is the softmax
cross-entropy for one label of several classes, with two classes that of a single logit (as in
scikit-learn), and one binary cross-entropy a label for multi-label data. There a label sums over
its own unmasked rows only: :math:`N` and :math:`\lambda` differ by label.

**Solution.** L-BFGS (`crsbench.probes.lbfgs`), in the weights of the features
(`crsbench.probes.objectives`) or, with fewer rows than columns, in a weight for each row
(`crsbench.probes.rows`). Most of the way is gone with products in float32; then float64 takes over,
and decides.

**Stop.** At :math:`\lVert \nabla f \rVert_\infty \le` tolerance, in float64 and in the original
variables; each label for itself.

**Threads.** Fits run side by side, each with a BLAS of one thread, and small ones share a thread:
neither changes a bit.

**Devices.** The products are computed in NumPy or on a GPU (`crsbench.probes.devices`). Fits with
fewer rows than columns are small, and stay on the CPU.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError
from threadpoolctl import threadpool_limits

from crsbench.probes.base import (
    ONE_VALUE,
    Features,
    Floats,
    Probe,
    Status,
    Subset,
)
from crsbench.probes.devices import chosen_engine
from crsbench.probes.engines import NUMPY, Engine
from crsbench.probes.lbfgs import Minimum
from crsbench.probes.objectives import LogisticObjective
from crsbench.probes.problems import Problem, problem_of
from crsbench.probes.rows import SYSTEM_ROWS, RowObjective
from crsbench.probes.solver import solve
from crsbench.splits import Task

#: Features of this size could overflow in float32 when squared and summed.
_LARGEST = 1e15
#: Rows that are scored at a time.
_SCORED_ROWS = 4096
_SEPARABLE = "separable: no training row is on the wrong side; only the penalty bounds the weights"


@dataclass(frozen=True)
class LogisticFit:
    """A fitted logistic regression; see `crsbench.probes.base.Fit`.

    Attributes
    ----------
    coefficients, intercept
        ``(D, C)`` and ``(C,)``. The intercept of a class that no training row holds is minus
        infinity, that of a label without both values NaN, all are NaN if nothing was fitted.
    objective
        The minimised mean objective; for multi-label data the sum over the fitted labels.
    """

    coefficients: Floats
    intercept: Floats
    status: Status
    reason: str | None
    iterations: int
    gradient_norm: float
    objective: float
    n_train: int

    def logits(self, features: NDArray[np.floating]) -> Floats:
        """Score features ``(N, D)``: logits ``(N, C)``."""
        return np.asarray(features, dtype=np.float64) @ self.coefficients + self.intercept


def fit_logistic(
    features: Features,
    labels: NDArray[Any],
    subsets: Sequence[Subset],
    *,
    threads: int,
    engine: Engine = NUMPY,
    **settings: Any,
) -> list[LogisticFit]:
    """Fit the probe on each of the subsets of a cell, side by side on threads.

    `settings` are those of `fit_sets`; see `crsbench.probes.base.Probe`.
    """

    def fit(groups: Sequence[Sequence[int]]) -> dict[int, LogisticFit]:
        fits: dict[int, LogisticFit] = {}
        for numbers in groups:
            sets = [_of_rows(features, labels, subsets[number].rows) for number in numbers]
            fits |= zip(numbers, fit_sets(sets, engine=engine, **settings), strict=True)
        return fits

    tasks = _tasks([len(each.rows) for each in subsets])
    with _workers(threads, engine) as pool:
        fits = dict(chain.from_iterable(of_task.items() for of_task in pool.map(fit, tasks)))
    return [fits[number] for number in range(len(subsets))]


def _of_rows(
    features: Features, labels: NDArray[Any], rows: NDArray[np.int64]
) -> tuple[Features, NDArray[Any]]:
    """Return the features and labels of some rows, without a copy where they are all."""
    return features if len(rows) == len(features) else features[rows], labels[rows]


def _tasks(sizes: Sequence[int]) -> list[list[list[int]]]:
    """Return the numbers of training sets: in groups that are fitted together, by task of a thread.

    Small ones of one size are fitted together: few rows gain from it, and many take memory. All
    small ones are one task: most of their time Python runs, and two threads would only wait for
    each other. It stands first, then the others from the largest down, so that none of what takes
    long is left for the end.
    """
    small: dict[int, list[int]] = {}
    for number, size in enumerate(sizes):
        if size <= SYSTEM_ROWS:
            small.setdefault(size, []).append(number)
    large = sorted(
        (n for n, size in enumerate(sizes) if size > SYSTEM_ROWS), key=lambda n: -sizes[n]
    )
    tasks = [[[number]] for number in large]
    return [list(small.values()), *tasks] if small else tasks


@contextmanager
def _workers(threads: int, engine: Engine) -> Iterator[ThreadPoolExecutor]:
    """Open as many threads as an engine can use; BLAS has one in each."""
    n_workers = threads if engine.side_by_side else 1
    with engine.exact(), threadpool_limits(1), ThreadPoolExecutor(n_workers) as pool:
        yield pool


def score_logistic(
    fits: Sequence[LogisticFit], features: Features, *, threads: int, engine: Engine = NUMPY
) -> NDArray[np.float32]:
    """Score features ``(N, D)`` under several fits, one product a block of rows, in float64."""
    coefficients = np.hstack([fitted.coefficients for fitted in fits])
    intercepts = np.hstack([fitted.intercept for fitted in fits])
    scored = engine.scorer(coefficients, intercepts)
    logits = np.empty((len(fits), len(features), fits[0].coefficients.shape[1]), np.float32)

    def score(first: int) -> None:
        rows = slice(first, first + _SCORED_ROWS)
        of_block = scored(features[rows])
        logits[:, rows] = of_block.reshape(len(of_block), len(fits), -1).swapaxes(0, 1)

    with _workers(threads, engine) as pool:
        list(pool.map(score, range(0, len(features), _SCORED_ROWS)))
    return logits


def fit_rows(features: Features, labels: NDArray[Any], **settings: Any) -> LogisticFit:
    """Fit the probe on all rows; see `fit_sets`."""
    return fit_sets([(features, labels)], **settings)[0]


def fit_sets(
    sets: Sequence[tuple[Features, NDArray[Any]]],
    *,
    task: Task,
    n_classes: int,
    tolerance: float,
    max_iterations: int,
    engine: Engine = NUMPY,
) -> list[LogisticFit]:
    """Fit the probe on each of some training sets; which others there are changes no bit.

    A fit that cannot be made is returned with its status, not raised.

    Parameters
    ----------
    sets
        Features ``(N, D)``, standardised, and labels: ``(N,)`` class indices, or for multi-label
        data ``(N, C)`` of 1, 0, and NaN for masked.
    tolerance
        Largest component of the gradient at which to stop. Below about 1e-12 rounding in float64
        ends the descent first.
    max_iterations
        Cap; reaching it gives the status ``not_converged``.
    engine
        Computes the products.

    Raises
    ------
    ValueError
        If the shapes do not belong together.
    """
    prepared = [_prepared(*each, task=task, n_classes=n_classes, engine=engine) for each in sets]
    fits = {place: each for place, each in enumerate(prepared) if isinstance(each, LogisticFit)}
    alike: dict[object, dict[int, _Prepared]] = {}
    for place, each in enumerate(prepared):
        if isinstance(each, _Prepared):
            kind_and_size = type(each.objective), each.objective.start().shape
            alike.setdefault(kind_and_size, {})[place] = each
    for group in alike.values():
        objectives = [each.objective for each in group.values()]
        ends = solve(objectives, tolerance=tolerance, max_iterations=max_iterations)
        for (place, each), end in zip(group.items(), ends, strict=True):
            fits[place] = each.fit(end, tolerance=tolerance, max_iterations=max_iterations)
    return [fits[place] for place in range(len(sets))]


def _check_shapes(
    features: NDArray[Any], labels: NDArray[Any], label_columns: tuple[int, ...]
) -> None:
    expected = (len(features), *label_columns)
    if features.ndim != 2 or labels.shape != expected:
        raise ValueError(
            f"features {features.shape} and labels {labels.shape} do not belong together: "
            f"expected (N, D) and {expected}"
        )


def _all_small(features: Features) -> bool:
    """Return whether all features can be squared and summed, without a copy of them."""
    return bool(features.max() < _LARGEST and features.min() > -_LARGEST)


class _Unfitted:
    """Makes the record of a fit that cannot be made."""

    def __init__(self, rows: Features, n_classes: int) -> None:
        self._rows, self._n_classes = rows, n_classes

    def because(self, status: Status, reason: str) -> LogisticFit:
        return LogisticFit(
            coefficients=np.full((self._rows.shape[1], self._n_classes), np.nan),
            intercept=np.full(self._n_classes, np.nan),
            status=status,
            reason=reason,
            iterations=0,
            gradient_norm=np.nan,
            objective=np.nan,
            n_train=len(self._rows),
        )


@dataclass(frozen=True)
class _Prepared:
    """A training set that can be fitted."""

    problem: Problem
    objective: LogisticObjective | RowObjective
    n_train: int
    n_classes: int

    def fit(self, end: Minimum, *, tolerance: float, max_iterations: int) -> LogisticFit:
        """Return the fit that ended so."""
        weights = self.objective.weights(end.points)
        of_classes = np.zeros((weights.shape[1], self.n_classes))
        of_classes[-1] = self.problem.absent
        of_classes[:, self.problem.held] = weights.T @ self.problem.spread
        labels = self.problem.held if len(end.norms) > 1 else None
        status, reason = _end(end, labels, tolerance=tolerance, max_iterations=max_iterations)
        return LogisticFit(
            coefficients=of_classes[:-1],
            intercept=of_classes[-1],
            status=status,
            reason=reason,
            iterations=int(end.iterations.max()),
            gradient_norm=float(end.norms.max()),
            objective=float(end.values.sum()),
            n_train=self.n_train,
        )


def _prepared(
    features: Features, labels: NDArray[Any], *, task: Task, n_classes: int, engine: Engine
) -> _Prepared | LogisticFit:
    """Return what can be fitted, or the record of why it cannot."""
    rows, labels = np.ascontiguousarray(features, dtype=np.float32), np.asarray(labels)
    _check_shapes(rows, labels, (n_classes,) if task == "multilabel" else ())
    problem = problem_of(labels, task=task)
    unfitted = _Unfitted(rows, n_classes)
    if not len(problem.held):
        return unfitted.because("single_class", ONE_VALUE)
    if not _all_small(rows):
        return unfitted.because(
            "failed", f"training features are not finite, or not below {_LARGEST:g}"
        )
    kind = engine.objective if len(rows) >= rows.shape[1] else RowObjective
    try:
        return _Prepared(problem, kind(rows, problem.loss), len(rows), n_classes)
    except LinAlgError as error:
        return unfitted.because(
            "failed", f"training features are ill-conditioned, are they standardised? ({error})"
        )


def _end(
    end: Minimum, labels: NDArray[np.intp] | None, *, tolerance: float, max_iterations: int
) -> tuple[Status, str | None]:
    """Return how a fit ended, and what is to be known about it.

    Parameters
    ----------
    labels
        The numbers of those that the problems are of; None where there is one problem.
    """

    def of(problems: NDArray[np.bool_]) -> str:
        if labels is None or problems.all():
            return ""
        return f" (labels {', '.join(map(str, labels[problems]))})"

    reasons = []
    unfinished = ~(end.norms <= tolerance)
    if unfinished.any():
        capped = (end.iterations >= max_iterations)[unfinished].any()
        what_ended = "the cap" if capped else "where rounding ends the descent"
        reasons.append(
            f"gradient {end.norms.max():.1e} above the tolerance after "
            f"{end.iterations[unfinished].max()} iterations, {what_ended}{of(unfinished)}"
        )
    separable = np.isfinite(end.norms) & (end.errors == 0)
    if separable.any():
        reasons.append(_SEPARABLE + of(separable))
    return "not_converged" if unfinished.any() else "converged", "; ".join(reasons) or None


PROBE = Probe(fit_logistic, score_logistic, seed_matters=False, engine=chosen_engine)
