r"""The primary probe: l2-regularised logistic regression, solved to a stated gradient norm.

**Objective.** With rows :math:`x_i`, weights :math:`W` (D, C) and intercepts :math:`b` (C,),

.. math:: f(W, b) = \frac1N \sum_i \ell(x_i W + b, y_i) + \frac\lambda2 \lVert W \rVert^2,
          \qquad \lambda = \frac1N,

which is scikit-learn's C = 1. The intercepts are not penalised. :math:`\ell` is the softmax
cross-entropy for one label of several classes, with two classes that of a single logit (as in
scikit-learn), and one binary cross-entropy a label for multi-label data. There a label sums over
its own unmasked rows only: :math:`N` and :math:`\lambda` differ by label.

**Fewer rows than columns.** The penalty does not notice rotations, and the optimal weights lie in
the span of the rows. With :math:`X^\top = Q T` (Q orthonormal, (D, N)) the problem in the N
columns of :math:`X Q = T^\top` has the same solution, :math:`W = Q W_T`.

**Change of variables.** The curvature of the losses along one logit is at most 1/4. So with a
column of ones joined to X, :math:`H = X^\top X / 4N + \lambda I` has the shape of the Hessian, and
L-BFGS works on :math:`V = R W` with :math:`R^\top R = H`, where the curvature is much alike in all
directions: tens of iterations instead of hundreds. R changes the path and not the optimum, hence
one R serves all classes and all masked labels, in one batch of matrix products.

**Stop.** At :math:`\lVert \nabla f \rVert_\infty \le` tolerance, in the original variables.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, qr, solve_triangular
from scipy.optimize import minimize
from scipy.special import expit

from crsbench.probes.base import Features, Floats, Probe, Status, Subset, score_each
from crsbench.splits import Task

Loss = Callable[[Floats], tuple[float, Floats]]

#: Features of this size could overflow when squared and summed.
_LARGEST = 1e100
#: Pairs of steps and gradients that L-BFGS remembers.
_MEMORY = 20


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
    task: Task,
    n_classes: int,
    threads: int,
    tolerance: float,
    max_iterations: int,
) -> list[LogisticFit]:
    """Fit the probe on each of the subsets, side by side on threads. See `fit_rows`."""

    def fit(subset: Subset) -> LogisticFit:
        return fit_rows(
            features[subset.rows],
            labels[subset.rows],
            task=task,
            n_classes=n_classes,
            tolerance=tolerance,
            max_iterations=max_iterations,
        )

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(fit, subsets))


def fit_rows(
    features: NDArray[np.floating],
    labels: NDArray[Any],
    *,
    task: Task,
    n_classes: int,
    tolerance: float,
    max_iterations: int,
) -> LogisticFit:
    """Fit the probe. A fit that cannot be made is returned with its status, not raised.

    Parameters
    ----------
    features
        ``(N, D)``, standardised.
    labels
        ``(N,)`` class indices, or for multi-label data ``(N, C)`` of 1, 0, and NaN for masked.
    tolerance
        Largest component of the gradient at which to stop. Below about 1e-9 rounding in float64
        ends the descent first.
    max_iterations
        Cap; reaching it gives the status ``not_converged``.

    Raises
    ------
    ValueError
        If the shapes do not belong together.
    """
    rows, labels = np.asarray(features, dtype=np.float64), np.asarray(labels)
    _check_shapes(rows, labels, (n_classes,) if task == "multilabel" else ())
    problem = _label_problem(labels) if task == "multilabel" else _class_problem(labels)
    if not len(problem.held):
        reason = "no label or class has both values in the training rows"
        return _unfitted(rows, n_classes, status="single_class", reason=reason)
    if not (np.abs(rows) < _LARGEST).all():
        reason = f"training features are not finite, or not below {_LARGEST:g}"
        return _unfitted(rows, n_classes, status="failed", reason=reason)
    try:
        solution = _minimise(rows, problem, tolerance=tolerance, max_iterations=max_iterations)
    except LinAlgError as error:
        reason = f"training features are ill-conditioned, are they standardised? ({error})"
        return _unfitted(rows, n_classes, status="failed", reason=reason)
    weights = np.zeros((rows.shape[1] + 1, n_classes))
    weights[-1] = problem.absent
    weights[:, problem.held] = solution.weights @ problem.spread
    converged = solution.gradient_norm <= tolerance
    return LogisticFit(
        coefficients=weights[:-1],
        intercept=weights[-1],
        status="converged" if converged else "not_converged",
        reason=None if converged else f"above the tolerance at the end: {solution.message}",
        iterations=solution.iterations,
        gradient_norm=solution.gradient_norm,
        objective=solution.objective,
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


def _unfitted(rows: Floats, n_classes: int, *, status: Status, reason: str) -> LogisticFit:
    return LogisticFit(
        coefficients=np.full((rows.shape[1], n_classes), np.nan),
        intercept=np.full(n_classes, np.nan),
        status=status,
        reason=reason,
        iterations=0,
        gradient_norm=np.nan,
        objective=np.nan,
        n_train=len(rows),
    )


@dataclass(frozen=True)
class _Problem:
    """The loss of N rows as a function of K columns of logits.

    Attributes
    ----------
    loss
        Logits ``(N, K)`` to the mean loss and its gradient by the logits.
    ridge
        ``(K,)`` lambda of each column.
    held
        ``(H,)`` the classes that the training rows can tell anything about.
    spread
        ``(K, H)`` the logits of the held classes, from the K columns.
    absent
        The intercept of all other classes.
    """

    loss: Loss
    ridge: Floats
    held: NDArray[np.intp]
    spread: Floats
    absent: float


def _label_problem(labels: Floats) -> _Problem:
    """One-vs-rest: each label that has both values over its unmasked rows."""
    both = (labels == 1).any(axis=0) & (labels == 0).any(axis=0)
    held = np.flatnonzero(both)
    loss, ridge = _binary_loss(labels[:, held])
    return _Problem(loss, ridge, held, np.eye(len(held)), np.nan)


def _class_problem(labels: NDArray[Any]) -> _Problem:
    """Multinomial over the classes that occur; a single logit where two do."""
    held, indices = np.unique(labels, return_inverse=True)
    if len(held) == 2:
        loss, ridge = _binary_loss(indices[:, None].astype(np.float64))
        return _Problem(loss, ridge, held, np.array([[-0.5, 0.5]]), -np.inf)
    held = held if len(held) > 1 else held[:0]
    loss, ridge = _softmax_loss(indices, n_classes=len(held))
    return _Problem(loss, ridge, held, np.eye(len(held)), -np.inf)


def _binary_loss(labels: Floats) -> tuple[Loss, Floats]:
    """Return the summed mean losses of the columns, and the lambda of each."""
    masked = np.isnan(labels)
    ridge = 1 / np.count_nonzero(~masked, axis=0)
    shares = np.where(masked, 0.0, ridge)
    truth = np.where(masked, 0.0, labels)

    def loss(logits: Floats) -> tuple[float, Floats]:
        value = np.sum(shares * (np.logaddexp(0, logits) - truth * logits))
        return float(value), shares * (expit(logits) - truth)

    return loss, ridge


def _softmax_loss(indices: NDArray[np.intp], *, n_classes: int) -> tuple[Loss, Floats]:
    """Return the mean cross-entropy of a softmax, and lambda for each of its columns."""
    n = len(indices)
    truth = (indices[:, None] == np.arange(n_classes)).astype(np.float64)

    def loss(logits: Floats) -> tuple[float, Floats]:
        logits = logits - logits.max(axis=1, keepdims=True)
        exponentials = np.exp(logits)
        sums = exponentials.sum(axis=1, keepdims=True)
        value = (np.log(sums).sum() - np.sum(truth * logits)) / n
        return float(value), (exponentials / sums - truth) / n

    return loss, np.full(n_classes, 1 / n)


@dataclass(frozen=True)
class _Solution:
    """Weights ``(D + 1, K)``, the intercepts last, and how they were reached."""

    weights: Floats
    iterations: int
    gradient_norm: float
    objective: float
    message: str


class _Objective:
    """The objective in the variables V = R W, with W = (weights, intercept) of `rows`.

    Parameters
    ----------
    rows
        ``(N, r)``: the features, or their coordinates in `basis`.
    basis
        ``(D, r)`` orthonormal, or None where `rows` are the features.
    """

    def __init__(self, rows: Floats, basis: Floats | None, problem: _Problem) -> None:
        n = len(rows)
        self._design = np.column_stack([rows, np.ones(n)])
        self._basis = basis
        self._loss = problem.loss
        penalised = np.append(np.ones(rows.shape[1]), 0.0)
        self._ridge = penalised[:, None] * problem.ridge
        self._factor = cholesky(self._design.T @ self._design / (4 * n) + np.diag(penalised / n))
        self.shape = self._ridge.shape
        self.gradient_norm = np.inf

    def __call__(self, variables: Floats) -> tuple[float, Floats]:
        """Return value and gradient in V, and keep the gradient's norm in W."""
        weights = self.weights(variables)
        value, by_logits = self._loss(self._design @ weights)
        gradient = self._design.T @ by_logits + self._ridge * weights
        self.gradient_norm = float(np.abs(self.lift(gradient)).max())
        value += 0.5 * float(np.sum(self._ridge * weights**2))
        return value, solve_triangular(self._factor, gradient, trans="T").ravel()

    def weights(self, variables: Floats) -> Floats:
        """Return W ``(r + 1, K)`` for V, given flat."""
        return solve_triangular(self._factor, variables.reshape(self.shape))

    def lift(self, weights: Floats) -> Floats:
        """Return W in the original variables, ``(D + 1, K)``."""
        if self._basis is None:
            return weights
        return np.vstack([self._basis @ weights[:-1], weights[-1]])


def _minimise(
    features: Floats, problem: _Problem, *, tolerance: float, max_iterations: int
) -> _Solution:
    objective = _Objective(*_in_row_space(features), problem)

    def stop_when_converged(_accepted: Floats) -> None:
        # The last evaluation before a callback is that of the accepted iterate.
        if objective.gradient_norm <= tolerance:
            raise StopIteration

    result = minimize(
        objective,
        np.zeros(objective.shape).ravel(),
        jac=True,
        method="L-BFGS-B",
        callback=stop_when_converged,
        options={
            "maxcor": _MEMORY,
            "maxiter": max_iterations,
            "maxfun": 20 * max_iterations,
            "ftol": 0.0,
            "gtol": 0.0,
        },
    )
    value, _ = objective(result.x)
    weights = objective.lift(objective.weights(result.x))
    return _Solution(weights, int(result.nit), objective.gradient_norm, value, result.message)


def _in_row_space(features: Floats) -> tuple[Floats, Floats | None]:
    """Return rows and basis with ``features = rows @ basis.T``, where that has fewer columns."""
    n_rows, n_columns = features.shape
    if n_rows >= n_columns:
        return features, None
    basis, triangle = qr(features.T, mode="economic")
    return triangle.T, basis


PROBE = Probe(fit_logistic, score_each, seed_matters=False)
