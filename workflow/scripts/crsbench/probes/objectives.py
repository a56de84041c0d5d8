r"""The objective of logistic regression, with its gradient and a preconditioner.

Points are ``(G, P)``: for each of K columns of logits the D weights and then the intercept, all in
one problem for a softmax, in K problems for labels.

**Preconditioner.** Where all rows weigh the same, the Hessian is :math:`B \otimes S + \lambda I`:
B the curvature of the loss by the logits, S the covariance of the features. M is
:math:`B \otimes (S + \frac\lambda\beta I)` with B as at the start, and :math:`\beta` a small share
of the mean of its diagonal: near the optimum little curvature is left. One factor serves all
classes or labels. About the mean of the features the intercept has no part in S. M changes the path
and not the optimum, so it may be approximate: for masked labels, of some of the rows, in float32.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular

from crsbench.probes.base import Features, Floats
from crsbench.probes.lbfgs import Evaluation
from crsbench.probes.losses import Binary, Softmax

#: Share of the curvature at the start that is left near the optimum, where most rows are certain.
#: Between 1/256 and 1/16 it matters little; 1 doubles the iterations of separable rows.
_CURVATURE_LEFT = 1 / 32
#: A block of rows has about this many numbers: it stays in the cache between its two products.
_BLOCK = 2**18
#: Rows, as a multiple of the columns, that a covariance is taken from.
COVARIANCE_ROWS = 16
#: Rows that are copied at a time for it.
COVARIANCE_BLOCK = 4096
#: Relative to the trace: what rounding in float32 may take from an eigenvalue of a covariance.
ROUNDING = 1e-7
#: Relative to the mean square of a row: keeps the factor of the rows' products regular.
ROW_RIDGE = 1e-10


class Ridge(Protocol):
    """The covariance S of features about their mean, with a ridge on its diagonal."""

    mean: Floats

    def solve(self, vectors: Floats) -> Floats:
        """Return the inverse of S + ridge times vectors ``(K, D)``."""


class _RidgeOfColumns:
    """S + ridge factorised in float32, for more rows than columns."""

    def __init__(self, features: Features, ridge: float) -> None:
        some = features[:: max(1, len(features) // (COVARIANCE_ROWS * features.shape[1]))]
        self.mean = some.mean(axis=0, dtype=np.float64)
        covariance = np.zeros((features.shape[1],) * 2, np.float32)
        for first in range(0, len(some), COVARIANCE_BLOCK):
            block = np.ascontiguousarray(some[first : first + COVARIANCE_BLOCK])
            covariance += block.T @ block
        covariance /= np.float32(len(some))
        covariance -= np.outer(self.mean, self.mean).astype(np.float32)
        ridge += ROUNDING * float(np.trace(covariance))
        covariance[np.diag_indices_from(covariance)] += np.float32(ridge)
        self._factor = cho_factor(covariance, overwrite_a=True)

    def solve(self, vectors: Floats) -> Floats:
        single = vectors.T.astype(np.float32)
        solved: Floats = cho_solve(self._factor, single, check_finite=False).T.astype(np.float64)
        return solved


class RowSpace:
    r"""Coordinates of N rows, about their mean, in the space that they span.

    With :math:`T T^\top = X X^\top` the rows of T ``(N, N)`` stand to each other as those of X
    ``(N, D)`` do: the penalty does not notice. T is the Cholesky factor, in float32.

    Parameters
    ----------
    features
        ``(N, D)``, fewer rows than columns.

    Attributes
    ----------
    mean
        ``(D,)`` of the features.
    centred, products
        ``(N, D)`` the features about it, and ``(N, N)`` the products of these rows.

    Raises
    ------
    LinAlgError
        If the features are too large or too ill-conditioned.
    """

    def __init__(self, features: Features) -> None:
        wide = features.astype(np.float64)
        self.mean = wide.mean(axis=0)
        self.centred = wide - self.mean
        self.products = self.centred @ self.centred.T
        products = self.products.copy()
        # About the mean the rows sum to 0, and repeated rows are common: the rank is not full.
        products[np.diag_indices_from(products)] += ROW_RIDGE * np.trace(products) / len(products)
        self._factor = cholesky(products, lower=True, overwrite_a=True)

    @property
    def rows(self) -> Features:
        """T ``(N, N)``."""
        return np.ascontiguousarray(self._factor, dtype=np.float32)

    def lift(self, weights: Floats) -> Floats:
        """Return weights ``(K, D + 1)`` of the features for those ``(K, N + 1)`` of T."""
        of_rows = solve_triangular(self._factor, weights[:, :-1].T, lower=True, trans="T")
        lifted = of_rows.T @ self.centred
        return np.column_stack([lifted, weights[:, -1] - lifted @ self.mean])


class _RidgeOfRows:
    """S + ridge by the matrix of the rows' products (Woodbury), for fewer rows than columns."""

    def __init__(self, space: RowSpace, ridge: float) -> None:
        self.mean = space.mean
        self._rows, self._ridge = space.centred, ridge
        products = space.products.copy()
        products[np.diag_indices_from(products)] += len(products) * ridge
        self._factor = cho_factor(products, overwrite_a=True)

    def solve(self, vectors: Floats) -> Floats:
        of_rows = cho_solve(self._factor, self._rows @ vectors.T, check_finite=False)
        return (vectors - of_rows.T @ self._rows) / self._ridge


class LogisticObjective:
    """The objective of a loss and of features.

    Parameters
    ----------
    features
        ``(N, D)``.
    loss
        Of its N rows.
    space
        That of the rows, where they are fewer than the columns.

    Raises
    ------
    LinAlgError
        If the features are too large or too ill-conditioned for a preconditioner.
    """

    def __init__(
        self, features: Features, loss: Softmax | Binary, *, space: RowSpace | None = None
    ) -> None:
        self._loss, self._counts = loss, loss.counts
        ridge = float((1 / self._counts).mean() / (_CURVATURE_LEFT * loss.curvature))
        self._features, self._space = features, space
        self._ridge = self._factorised(ridge)

    def start(self) -> Floats:
        """Return the point ``(G, P)`` without weights and with the best intercepts."""
        points = np.zeros((len(self._counts), self._features.shape[1] + 1))
        points[:, -1] = self._loss.intercepts()
        return points.reshape(self._loss.n_problems, -1)

    def weights(self, points: Floats) -> Floats:
        """Return what points ``(G, P)`` stand for: weights ``(K, D + 1)``, the intercepts last."""
        return points.reshape(-1, self._features.shape[1] + 1)

    def single(self, points: Floats, numbers: NDArray[np.intp]) -> Evaluation:
        """Evaluate with products in float32, summed over blocks in float64; without values."""
        return self._evaluate(points, numbers, np.float32)

    def double(self, points: Floats, numbers: NDArray[np.intp]) -> Evaluation:
        """Evaluate in float64, one block of rows after the other."""
        return self._evaluate(points, numbers, np.float64)

    def _evaluate(
        self, points: Floats, numbers: NDArray[np.intp], precision: type[np.floating]
    ) -> Evaluation:
        weights = self.weights(points)
        columns = _columns(self._loss, numbers)
        gradients, losses, errors = self._sums(weights, columns, precision)
        gradients /= self._counts[columns, None]
        gradients[:, :-1] += weights[:, :-1] / self._counts[columns, None]
        losses += 0.5 * np.einsum("kd,kd->k", weights[:, :-1], weights[:, :-1])
        return _evaluation(
            gradients,
            self._precondition(gradients, columns),
            np.abs(gradients).max(axis=1),
            losses / self._counts[columns],
            errors,
            shape=points.shape,
        )

    def _factorised(self, ridge: float) -> Ridge:
        """Return S + ridge; another place to compute in has its own."""
        if self._space is not None:
            return _RidgeOfRows(self._space, ridge)
        return _RidgeOfColumns(self._features, ridge)

    def _sums(
        self, weights: Floats, columns: NDArray[np.intp], precision: type[np.floating]
    ) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """Return sums over the rows: gradients ``(K, D + 1)``, losses and errors ``(K,)``.

        They are without the penalty. Another place to compute in has its own.
        """
        slopes = np.ascontiguousarray(weights[:, :-1].T, dtype=precision)
        intercepts = weights[:, -1].astype(precision)
        gradients, losses = np.zeros_like(weights), np.zeros(len(weights))
        errors = np.zeros(len(weights), np.int64)
        size = max(64, _BLOCK // self._features.shape[1])
        for first in range(0, len(self._features), size):
            rows = slice(first, first + size)
            block = self._features[rows].astype(precision, copy=False)
            logits = block @ slopes
            logits += intercepts
            if precision is np.float64:
                assessment = self._loss.assess(logits, rows, columns)
                losses += assessment.losses
                errors += assessment.errors
            residuals = self._loss.residuals(logits, rows, columns)
            gradients[:, :-1] += (block.T @ residuals).T
            gradients[:, -1] += residuals.sum(axis=0, dtype=np.float64)
        return gradients, losses, errors

    def _precondition(self, gradients: Floats, columns: NDArray[np.intp]) -> Floats:
        centred = gradients[:, :-1] - gradients[:, -1:] * self._ridge.mean
        solved = np.column_stack([self._ridge.solve(centred), gradients[:, -1]])
        solved = self._loss.sharpen(solved, columns)
        solved[:, -1] -= solved[:, :-1] @ self._ridge.mean
        return solved


def _columns(loss: Softmax | Binary, numbers: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the columns of logits of problems: all of the one, or one of each."""
    return numbers if loss.n_problems > 1 else np.arange(len(loss.counts))


def _evaluation(
    gradients: Floats,
    preconditioned: Floats,
    norms: Floats,
    values: Floats,
    errors: NDArray[np.int64],
    *,
    shape: tuple[int, ...],
) -> Evaluation:
    """Gather what is known of each column by problem."""
    by_problem = shape[0], -1
    return Evaluation(
        gradients.reshape(shape),
        preconditioned.reshape(shape),
        norms.reshape(by_problem).max(axis=1),
        values.reshape(by_problem).sum(axis=1),
        errors.reshape(by_problem).sum(axis=1),
    )
