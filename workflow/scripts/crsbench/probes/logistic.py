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

**Threads.** Fits run side by side, each with a BLAS of one thread: their number changes no bit.

**Devices.** The products are computed in NumPy or on a GPU (`crsbench.probes.devices`). Fits with
fewer rows than columns are small, and stay on the CPU.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
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
    held_classes,
)
from crsbench.probes.devices import chosen_engine
from crsbench.probes.engines import NUMPY, Engine
from crsbench.probes.lbfgs import Minimum, minimise
from crsbench.probes.losses import Binary, Softmax
from crsbench.probes.rows import RowObjective
from crsbench.splits import Task

#: Features of this size could overflow in float32 when squared and summed.
_LARGEST = 1e15
#: Float32 takes a fit to this share of the tolerance, but never below the smallest norm.
_SINGLE_SHARE, _SINGLE_LEAST = 0.7, 3e-7
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

    `settings` are those of `fit_rows`; see `crsbench.probes.base.Probe`.
    """

    def fit(number: int) -> LogisticFit:
        rows = subsets[number].rows
        whole = len(rows) == len(features)
        own = features if whole else features[rows]
        return fit_rows(own, labels[rows], engine=engine, **settings)

    # The largest first, so that none is left for the end; BLAS on one thread: see the module.
    order = sorted(range(len(subsets)), key=lambda number: -len(subsets[number].rows))
    with _workers(threads, engine) as pool:
        fits = dict(zip(order, pool.map(fit, order), strict=True))
    return [fits[number] for number in range(len(subsets))]


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


def fit_rows(
    features: Features,
    labels: NDArray[Any],
    *,
    task: Task,
    n_classes: int,
    tolerance: float,
    max_iterations: int,
    engine: Engine = NUMPY,
) -> LogisticFit:
    """Fit the probe on all rows. A fit that cannot be made is returned with its status, not raised.

    Parameters
    ----------
    features
        ``(N, D)``, standardised.
    labels
        ``(N,)`` class indices, or for multi-label data ``(N, C)`` of 1, 0, and NaN for masked.
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
    rows, labels = np.ascontiguousarray(features, dtype=np.float32), np.asarray(labels)
    _check_shapes(rows, labels, (n_classes,) if task == "multilabel" else ())
    problem = _label_problem(labels) if task == "multilabel" else _class_problem(labels)
    unfitted = _Unfitted(rows, n_classes)
    if not len(problem.held):
        return unfitted.because("single_class", ONE_VALUE)
    if not _all_small(rows):
        return unfitted.because(
            "failed", f"training features are not finite, or not below {_LARGEST:g}"
        )
    try:
        weights, minimum = _solve(
            rows, problem.loss, engine, tolerance=tolerance, max_iterations=max_iterations
        )
    except LinAlgError as error:
        return unfitted.because(
            "failed", f"training features are ill-conditioned, are they standardised? ({error})"
        )
    spread = np.zeros((rows.shape[1] + 1, n_classes))
    spread[-1] = problem.absent
    spread[:, problem.held] = weights.T @ problem.spread
    status, reason = _end(minimum, tolerance)
    return LogisticFit(
        coefficients=spread[:-1],
        intercept=spread[-1],
        status=status,
        reason=reason,
        iterations=int(minimum.iterations.max()),
        gradient_norm=float(minimum.norms.max()),
        objective=float(minimum.values.sum()),
        n_train=len(rows),
    )


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
class _Problem:
    """The loss of N rows as a function of K columns of logits.

    Attributes
    ----------
    loss
        Of the K columns.
    held
        ``(H,)`` the classes that the training rows can tell anything about.
    spread
        ``(K, H)`` the logits of the held classes, from the K columns.
    absent
        The intercept of all other classes.
    """

    loss: Softmax | Binary
    held: NDArray[np.intp]
    spread: Floats
    absent: float


def _label_problem(labels: Floats) -> _Problem:
    """One-vs-rest: each label that has both values over its unmasked rows."""
    both = held_classes(labels, task="multilabel", n_classes=labels.shape[1])
    held = np.flatnonzero(both)
    return _Problem(Binary.of(labels[:, held]), held, np.eye(len(held)), np.nan)


def _class_problem(labels: NDArray[Any]) -> _Problem:
    """Multinomial over the classes that occur; a single logit where two do."""
    held, indices = np.unique(labels, return_inverse=True)
    if len(held) == 2:
        loss = Binary.of(indices[:, None].astype(np.float64))
        return _Problem(loss, held, np.array([[-0.5, 0.5]]), -np.inf)
    truth = (np.arange(len(held))[:, None] == indices).astype(np.float32)
    return _Problem(Softmax(truth), held if len(held) > 1 else held[:0], np.eye(len(held)), -np.inf)


def _solve(
    features: Features,
    loss: Softmax | Binary,
    engine: Engine,
    *,
    tolerance: float,
    max_iterations: int,
) -> tuple[Floats, Minimum]:
    """Return the best weights ``(K, D + 1)``, the intercepts last, and how they were reached."""
    kind = engine.objective if len(features) >= features.shape[1] else RowObjective
    objective = kind(features, loss)
    rough = objective.approach(
        tolerance=max(_SINGLE_SHARE * tolerance, _SINGLE_LEAST), max_iterations=max_iterations
    )
    minimum = minimise(
        objective.double,
        rough.points,
        tolerance=tolerance,
        max_iterations=max_iterations - rough.iterations,
    )
    return objective.weights(minimum.points), minimum.after(rough)


def _end(minimum: Minimum, tolerance: float) -> tuple[Status, str | None]:
    """Return how a fit ended, and what is to be known about it."""
    if not minimum.norms.max() <= tolerance:
        return "not_converged", (
            f"gradient {minimum.norms.max():.1e} above the tolerance after "
            f"{minimum.iterations.max()} iterations"
        )
    return "converged", _SEPARABLE if not minimum.errors.any() else None


PROBE = Probe(fit_logistic, score_logistic, seed_matters=False, engine=chosen_engine)
