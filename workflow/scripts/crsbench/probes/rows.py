r"""The objective of logistic regression on fewer rows than columns, in a weight for each row.

The best weights lie in the span of the rows: :math:`W = A X` with A ``(K, N)`` and X the features
about their mean. With :math:`Q = X X^\top` the logits are :math:`A Q + b`, the penalty is
:math:`\frac12 \operatorname{tr} A Q A^\top`, and nothing has D columns any more. With R the
gradient of the summed loss by the logits, the gradient of the summed objective is
:math:`(R + A) Q` by A and :math:`(R + A) X` by W.

Points are ``(G, P)`` as in `crsbench.probes.objectives`, with N weights in place of D.

**Preconditioner.** At the start that of `crsbench.probes.objectives`, which is
:math:`(R + A)(Q / N + \rho I)^{-1}` here. Such rows are separable as a rule: near the optimum the
curvature V differs from row to row by orders of magnitude, and the one covariance of all rows says
little. There it is Newton's system of each class or label, :math:`(I + V Q)^{-1} (R + A)`, which
for labels is the Hessian, and for a softmax leaves out that one class's logit moves the others but
for what all classes share. It takes a third of the iterations, and K factorisations.
"""

from contextlib import suppress

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError
from scipy.linalg.lapack import spotrs

from crsbench.probes.base import Features, Floats
from crsbench.probes.cholesky import InverseOfSum, add_to_diagonal, cholesky_factor
from crsbench.probes.lbfgs import Evaluation
from crsbench.probes.losses import Binary, Columns, Softmax
from crsbench.probes.objectives import by_problem, columns_of, ridge_of
from crsbench.probes.thin import times, times_transposed

#: Norm of the gradient at which Newton's systems are taken: the curvature is that of the end.
_NEAR = 3e-4
#: With more rows the systems take longer than the iterations that they save.
SYSTEM_ROWS = 800
#: The largest component of a gradient is about so many times the root mean square.
_LARGEST_TO_MEAN = 4
_ALL = slice(None)


class RowObjective:
    """The objective of a loss and of features.

    Parameters
    ----------
    features
        ``(N, D)``, fewer rows than columns.
    loss
        Of its N rows.

    Raises
    ------
    LinAlgError
        If the features are too large or too ill-conditioned for a preconditioner.
    """

    def __init__(self, features: Features, loss: Softmax | Binary) -> None:
        self._loss, self._counts = loss, loss.counts
        self._features, self._mean = features, features.mean(axis=0, dtype=np.float64)
        rows = features - self._mean.astype(np.float32)
        self._products = rows @ rows.T
        self._preconditioner: _OneSystem | _Systems = _OneSystem(self._products, loss)

    @property
    def near(self) -> float:
        """Norm of the gradient at which Newton's systems are worth their time."""
        return _NEAR if len(self._features) <= SYSTEM_ROWS else 0.0

    def start(self) -> Floats:
        """Return the point ``(G, P)`` without weights and with the best intercepts."""
        points = np.zeros((len(self._counts), len(self._features) + 1))
        points[:, -1] = self._loss.intercepts()
        return points.reshape(self._loss.n_problems, -1)

    def refine(self, points: Floats) -> None:
        """Precondition with Newton's systems at points ``(G, P)``."""
        logits = self._logits(*self._split(points))
        curvatures = self._loss.curvatures(logits[None])[0]
        # Rows too large for the systems are large for the first preconditioner, which stays.
        with suppress(LinAlgError):
            self._preconditioner = _Systems(self._products, self._loss, curvatures)

    def weights(self, points: Floats) -> Floats:
        """Return what points ``(G, P)`` stand for: weights ``(K, D + 1)``, the intercepts last."""
        of_rows, intercepts = self._split(points)
        weights = self._lifted(of_rows)
        return np.column_stack([weights, intercepts[:, 0] - weights @ self._mean])

    def single(self, points: Floats, numbers: NDArray[np.intp]) -> Evaluation:
        """Evaluate with products in float32, without values, with norms that are estimates."""
        of_rows, intercepts = self._split(points)
        columns = columns_of(self._loss, numbers)
        logits = self._logits(of_rows, intercepts)
        residuals = self._loss.residuals(logits[None], _ALL, columns)[0]
        total = residuals + of_rows.astype(np.float32)
        by_rows = times_transposed(total, self._products)
        squares = np.einsum("kn,kn->k", total, by_rows, dtype=np.float64)
        return self._evaluation(
            by_rows,
            total,
            residuals.sum(axis=1, keepdims=True, dtype=np.float64),
            _LARGEST_TO_MEAN * np.sqrt(np.maximum(squares, 0) / self._features.shape[1]),
            columns,
            n_problems=len(points),
        )

    def double(self, points: Floats, numbers: NDArray[np.intp]) -> Evaluation:
        """Evaluate in float64."""
        of_rows, intercepts = self._split(points)
        columns = columns_of(self._loss, numbers)
        weights = self._lifted(of_rows)
        logits = self._scores(weights) + intercepts
        losses, errors = self._loss.assess(logits[None], _ALL, columns)
        residuals = self._loss.residuals(logits[None], _ALL, columns)[0]
        total = residuals + of_rows
        by_weights = self._lifted(total)
        by_intercepts = residuals.sum(axis=1, keepdims=True)
        return self._evaluation(
            self._scores(by_weights),
            total,
            by_intercepts,
            np.abs(by_weights + by_intercepts * self._mean).max(axis=1),
            columns,
            n_problems=len(points),
            losses=losses + 0.5 * np.einsum("kd,kd->k", weights, weights),
            errors=errors,
        )

    def _split(self, points: Floats) -> tuple[Floats, Floats]:
        """Return the weights of the rows ``(k, N)`` and the intercepts ``(k, 1)``."""
        both = points.reshape(-1, len(self._features) + 1)
        return both[:, :-1], both[:, -1:]

    def _lifted(self, of_rows: Floats) -> Floats:
        """Return the sums ``(k, D)`` of the centred features, weighted ``(k, N)``."""
        return times(of_rows, self._features) - of_rows.sum(axis=1, keepdims=True) * self._mean

    def _scores(self, weights: Floats) -> Floats:
        """Return the products ``(k, N)`` of weights ``(k, D)`` and the centred features."""
        centred = times_transposed(weights, self._features)
        centred -= (weights @ self._mean)[:, None]
        return centred

    def _logits(self, of_rows: Floats, intercepts: Floats) -> Features:
        logits = times_transposed(of_rows.astype(np.float32), self._products)
        logits += intercepts.astype(np.float32)
        return logits

    def _evaluation(
        self,
        by_rows: NDArray[np.floating],
        total: NDArray[np.floating],
        by_intercepts: Floats,
        norms: Floats,
        columns: Columns,
        *,
        n_problems: int,
        losses: Floats | None = None,
        errors: NDArray[np.int64] | None = None,
    ) -> Evaluation:
        """Gather an evaluation from gradients of the summed objective.

        Parameters
        ----------
        by_rows, by_intercepts
            ``(k, N)`` and ``(k, 1)``.
        total
            ``(k, N)``, R + A.
        norms
            ``(k,)`` largest component by the weights of the features.
        """
        counts = self._counts[columns]
        nothing = np.zeros(len(counts))
        return by_problem(
            np.hstack([by_rows, by_intercepts]) / counts[:, None],
            self._preconditioner.solve(total, by_rows, by_intercepts, columns),
            np.maximum(norms, np.abs(by_intercepts[:, 0])) / counts,
            nothing if losses is None else losses / counts,
            nothing.astype(np.int64) if errors is None else errors,
            n_problems=n_problems,
        )


class _OneSystem:
    """The preconditioner of the start: one system for all classes or labels."""

    def __init__(self, products: Features, loss: Softmax | Binary) -> None:
        self._inverse = InverseOfSum(products.copy(), len(products) * ridge_of(loss))
        self._loss, self._share = loss, len(products) / loss.counts

    def solve(
        self,
        total: NDArray[np.floating],
        _by_rows: NDArray[np.floating],
        by_intercepts: Floats,
        columns: Columns,
    ) -> Floats:
        solved = self._inverse.times(total) * self._share[columns, None]
        by_intercepts = by_intercepts / self._loss.counts[columns, None]
        return self._loss.sharpen(np.hstack([solved, by_intercepts]), columns)


class _Systems:
    """Newton's systems, one for each class or label, factorised in float32.

    With V the curvatures, :math:`(I + V Q)^{-1} u = u - V^{1/2} B^{-1} V^{1/2} Q u` where
    :math:`B = I + V^{1/2} Q V^{1/2}`. The intercept is what makes the weights of the rows sum to 0.
    """

    def __init__(self, products: Features, loss: Softmax | Binary, curvatures: Features) -> None:
        self._loss = loss
        self._roots = np.sqrt(curvatures)
        self._factors = [self._factorised(products, roots) for roots in self._roots]
        by_intercept = times_transposed(curvatures, products)
        self._by_intercept = np.stack(
            [
                self._apply(number, *pair)
                for number, pair in enumerate(zip(curvatures, by_intercept, strict=True))
            ]
        )
        self._sums = self._by_intercept.sum(axis=1, dtype=np.float64)

    @staticmethod
    def _factorised(products: Features, roots: Features) -> Features:
        system = products * roots
        system *= roots[:, None]
        add_to_diagonal(system, 1.0)
        return cholesky_factor(system)

    def _apply(
        self, number: int, total: NDArray[np.floating], by_rows: NDArray[np.floating]
    ) -> NDArray[np.floating]:
        """Return the inverse of I + V Q times u, from u and Q u."""
        roots = self._roots[number]
        solved, _ = spotrs(self._factors[number], roots * by_rows, lower=1)
        applied: NDArray[np.floating] = total - roots * solved
        return applied

    def solve(
        self,
        total: NDArray[np.floating],
        by_rows: NDArray[np.floating],
        by_intercepts: Floats,
        columns: Columns,
    ) -> Floats:
        numbers = np.arange(len(self._roots))[columns]
        solved = np.zeros((len(numbers), total.shape[1] + 1))
        for place, number in enumerate(numbers):
            solved[place, :-1] = self._apply(number, total[place], by_rows[place])
        excess = (solved[:, :-1] - total).sum(axis=1) + by_intercepts[:, 0]
        solved[:, -1] = excess / self._sums[columns]
        solved[:, :-1] -= self._by_intercept[columns] * solved[:, -1:]
        return self._loss.centred(solved)
