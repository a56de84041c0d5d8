r"""The objective of logistic regression in its weights, with its gradient and a preconditioner.

Points are ``(G, P)``: for each of K rows of logits the D weights and then the intercept, all in
one problem for a softmax, in K problems for labels.

**Preconditioner.** Where all samples weigh the same, the Hessian is
:math:`B \otimes S + \lambda I`: B the curvature of the loss by the logits, S the covariance of the
features. M is :math:`B \otimes (S + \frac\lambda\beta I)` with B as at the start, and
:math:`\beta` a small share of the mean of its diagonal: near the optimum little curvature is left.
One factor serves all classes or labels. About the mean of the features the intercept has no part
in S. M changes the path and not the optimum, so it may be approximate: for masked labels, of some
of the rows, in float32.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crsbench.probes.base import Features, Floats
from crsbench.probes.cholesky import InverseOfSum
from crsbench.probes.lbfgs import Evaluation
from crsbench.probes.losses import Binary, Columns, Softmax
from crsbench.probes.thin import blocks, scores, weighted_sums

#: Share of the curvature at the start that is left near the optimum, where most rows are certain.
#: Between 1/256 and 1/32 it matters little; 1 doubles the iterations of separable rows.
_CURVATURE_LEFT = 1 / 128
#: Rows, as a multiple of the columns, that a covariance is taken from at least.
COVARIANCE_ROWS = 16
#: Rows that are copied at a time for it.
COVARIANCE_BLOCK = 4096
#: Relative to the trace: what rounding in float32 may take from an eigenvalue of a covariance.
ROUNDING = 1e-7


class Covariance:
    """The covariance of features about their mean, in float32, and its inverse with a ridge.

    Attributes
    ----------
    mean
        ``(D,)`` of the features.
    """

    mean: Floats

    def __init__(self, features: Features, ridge: float) -> None:
        some = features[:: max(1, len(features) // (COVARIANCE_ROWS * features.shape[1]))]
        self.mean = some.mean(axis=0, dtype=np.float64)
        covariance = np.zeros((features.shape[1],) * 2, np.float32)
        products = np.empty_like(covariance)
        for first in range(0, len(some), COVARIANCE_BLOCK):
            block = np.ascontiguousarray(some[first : first + COVARIANCE_BLOCK])
            covariance += np.matmul(block.T, block, out=products)
        covariance /= np.float32(len(some))
        mean = self.mean.astype(np.float32)
        covariance -= np.multiply(mean, mean[:, None], out=products)
        ridge += ROUNDING * float(np.trace(covariance))
        self._inverse = InverseOfSum(covariance, ridge)

    def solve(self, vectors: Floats) -> Floats:
        """Return the inverse of the covariance and the ridge times vectors ``(K, D)``."""
        return self._inverse.times(vectors)


class Sums(NamedTuple):
    """Sums over all rows, without the penalty.

    Attributes
    ----------
    gradients
        ``(k, D + 1)`` by the weights and the intercepts of some of the columns of logits.
    losses, errors
        ``(k,)`` each, in float64; 0 where only float32 was asked for.
    """

    gradients: Floats
    losses: Floats
    errors: NDArray[np.int64]


class LogisticObjective:
    """The objective of a loss and of features.

    Parameters
    ----------
    features
        ``(N, D)``.
    loss
        Of its N rows.

    Raises
    ------
    LinAlgError
        If the features are too large or too ill-conditioned for a preconditioner.
    """

    near = 0.0

    def __init__(self, features: Features, loss: Softmax | Binary) -> None:
        self._loss, self._counts = loss, loss.counts
        self._features = features
        self._covariance = self._factorised(ridge_of(loss))

    def start(self) -> Floats:
        """Return the point ``(G, P)`` without weights and with the best intercepts."""
        return start_of(self._loss, n_weights=self._features.shape[1])

    def refine(self, points: Floats) -> None:
        """Keep the preconditioner: with many rows another one takes longer than it saves."""

    def weights(self, points: Floats) -> Floats:
        """Return what points ``(G, P)`` stand for: weights ``(K, D + 1)``, the intercepts last."""
        return points.reshape(-1, self._features.shape[1] + 1)

    def single(self, points: Floats, numbers: NDArray[np.intp]) -> Evaluation:
        """Evaluate with products in float32, summed over blocks in float64; values mean nothing."""
        return self._evaluate(points, numbers, np.float32)

    def double(self, points: Floats, numbers: NDArray[np.intp]) -> Evaluation:
        """Evaluate in float64, one block of rows after the other."""
        return self._evaluate(points, numbers, np.float64)

    def _evaluate(
        self, points: Floats, numbers: NDArray[np.intp], precision: type[np.floating]
    ) -> Evaluation:
        weights = self.weights(points)
        columns = columns_of(self._loss, numbers)
        gradients, losses, errors = self._sums(weights, columns, precision)
        counts = self._counts[columns]
        gradients[:, :-1] += weights[:, :-1]
        gradients /= counts[:, None]
        losses += 0.5 * np.einsum("kd,kd->k", weights[:, :-1], weights[:, :-1])
        return by_problem(
            gradients,
            self._precondition(gradients, columns),
            norms=np.abs(gradients).max(axis=1),
            values=losses / counts,
            errors=errors,
            n_problems=len(points),
        )

    def _factorised(self, ridge: float) -> Covariance:
        return Covariance(self._features, ridge)

    def _sums(self, weights: Floats, columns: Columns, precision: type[np.floating]) -> Sums:
        slopes = np.ascontiguousarray(weights[:, :-1], dtype=precision)
        intercepts = weights[:, -1:].astype(precision)
        sums = Sums(
            np.zeros_like(weights), np.zeros(len(weights)), np.zeros(len(weights), np.int64)
        )
        for rows, pieces in blocks(self._features, len(weights), precision):
            wide = pieces.astype(precision, copy=False)
            logits = scores(slopes, wide)
            logits += intercepts
            if precision is np.float64:
                assessment = self._loss.assess(logits, rows, columns)
                sums.losses[:] += assessment.losses
                sums.errors[:] += assessment.errors
            residuals = self._loss.residuals(logits, rows, columns)
            sums.gradients[:, :-1] += weighted_sums(residuals, wide)
            sums.gradients[:, -1] += residuals.sum(axis=(0, 2), dtype=np.float64)
        return sums

    def _precondition(self, gradients: Floats, columns: Columns) -> Floats:
        mean = self._covariance.mean
        centred = gradients[:, :-1] - gradients[:, -1:] * mean
        solved = np.hstack([self._covariance.solve(centred), gradients[:, -1:]])
        solved = self._loss.sharpen(solved, columns)
        solved[:, -1] -= solved[:, :-1] @ mean
        return solved


def start_of(loss: Softmax | Binary, *, n_weights: int) -> Floats:
    """Return the point ``(G, P)`` of no weights, so many a column, and the best intercepts."""
    points = np.zeros((len(loss.counts), n_weights + 1))
    points[:, -1] = loss.intercepts()
    return points.reshape(loss.n_problems, -1)


def ridge_of(loss: Softmax | Binary) -> float:
    """Return the ridge on a covariance that stands for the penalty near the optimum."""
    return float((1 / loss.counts).mean() / (_CURVATURE_LEFT * loss.curvature))


def columns_of(loss: Softmax | Binary, numbers: NDArray[np.intp]) -> Columns:
    """Return the columns of logits of problems: all of the one, or one of each."""
    return numbers if len(numbers) < loss.n_problems else slice(None)


def by_problem(
    gradients: Floats,
    preconditioned: Floats,
    *,
    norms: Floats,
    values: Floats,
    errors: NDArray[np.int64],
    n_problems: int,
) -> Evaluation:
    """Gather what is known of each column of logits by problem."""
    return Evaluation(
        gradients.reshape(n_problems, -1),
        preconditioned.reshape(n_problems, -1),
        norms.reshape(n_problems, -1).max(axis=1),
        values.reshape(n_problems, -1).sum(axis=1),
        errors.reshape(n_problems, -1).sum(axis=1),
    )
