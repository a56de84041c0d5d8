r"""The objective of logistic regression on fewer rows than columns, in a weight for each row.

The best weights lie in the span of the rows: :math:`W = A X` with A ``(K, N)`` and X the features
about their mean. With :math:`Q = X X^\top` the logits are :math:`A Q + b`, the penalty is
:math:`\frac12 \operatorname{tr} A Q A^\top`, and in float32 nothing has D columns any more. With R
the gradient of the summed loss by the logits and :math:`T = R + A`, the gradient of the summed
objective is :math:`T Q` by A and :math:`T X` by W.

Points are ``(G, P)`` as in `crsbench.probes.objectives`, with N weights in place of D.

**Preconditioner.** At the start that of `crsbench.probes.objectives`: with its ridge
:math:`\rho = \lambda / \beta` it takes T to :math:`T (Q + N \rho I)^{-1}`, then :math:`B^{-1}` acts
on the classes. Such rows are separable as a rule: near the optimum the curvature V differs from row
to row by orders of magnitude, and the one covariance of all rows says little. There Newton's system
of each class or label takes t to :math:`(I + V Q)^{-1} t`. For labels that is the inverse of the
Hessian; for a softmax it leaves out how the logit of one class moves the others, save for what all
classes share. It takes less than half of the iterations, and K factorisations.
"""

from contextlib import suppress
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError
from scipy.linalg.lapack import spotrs

from crsbench.probes.base import Features, Floats
from crsbench.probes.cholesky import InverseOfSum, add_to_diagonal, cholesky_factor
from crsbench.probes.lbfgs import Evaluation
from crsbench.probes.losses import Binary, Columns, Softmax
from crsbench.probes.objectives import by_problem, columns_of, ridge_of, start_of
from crsbench.probes.thin import times, times_symmetric, times_transposed

#: Norm of the gradient at which Newton's systems are taken: the curvature is that of the end.
_NEAR = 3e-4
#: With more rows the systems take longer than the iterations that they save.
SYSTEM_ROWS = 800
#: The largest component of a gradient is about so many times the root mean square; near the end the
#: part of the intercepts is small.
_LARGEST_TO_MEAN = 4
_ALL = slice(None)


class _Gradient(NamedTuple):
    """The gradient of the summed objective by some of the columns of logits.

    Attributes
    ----------
    total
        ``(k, N)``, T.
    by_rows
        ``(k, N)``, T Q: by the weights of the rows.
    by_intercepts
        ``(k, 1)`` sums of the residuals.
    """

    total: NDArray[np.floating]
    by_rows: NDArray[np.floating]
    by_intercepts: Floats


class _Preconditioner(Protocol):
    """Takes gradients to steps."""

    def solve(self, gradient: _Gradient, columns: Columns) -> Floats:
        """Return steps ``(k, N + 1)`` of the rows' weights and the intercepts."""


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
        self._preconditioner: _Preconditioner = _OneSystem(self._products, loss)

    @property
    def near(self) -> float:
        """Norm of the gradient at which Newton's systems are worth their time."""
        return _NEAR if len(self._features) <= SYSTEM_ROWS else 0.0

    def start(self) -> Floats:
        """Return the point ``(G, P)`` without weights and with the best intercepts."""
        return start_of(self._loss, n_weights=len(self._features))

    def refine(self, points: Floats) -> None:
        """Precondition with Newton's systems at points ``(G, P)``."""
        logits = self._logits(*self._split(points))
        curvatures = self._loss.curvatures(logits[None])[0]
        with suppress(LinAlgError):  # then the first preconditioner stays
            self._preconditioner = _Systems(self._products, self._loss, curvatures)

    def weights(self, points: Floats) -> Floats:
        """Return what points ``(G, P)`` stand for: weights ``(K, D + 1)``, the intercepts last."""
        of_rows, intercepts = self._split(points)
        weights = self._lifted(of_rows)
        return np.column_stack([weights, intercepts[:, 0] - weights @ self._mean])

    def single(self, points: Floats, numbers: NDArray[np.intp]) -> Evaluation:
        """Evaluate with products in float32; norms are estimates, values mean nothing."""
        of_rows, intercepts = self._split(points)
        columns = columns_of(self._loss, numbers)
        logits = self._logits(of_rows, intercepts)
        residuals = self._loss.residuals(logits[None], _ALL, columns)[0]
        total = residuals + of_rows.astype(np.float32)
        by_rows = times_symmetric(total, self._products)
        squares = np.einsum("kn,kn->k", total, by_rows, dtype=np.float64)
        nothing = np.zeros(len(total))
        return self._evaluation(
            _Gradient(total, by_rows, residuals.sum(axis=1, keepdims=True, dtype=np.float64)),
            columns,
            norms=_LARGEST_TO_MEAN * np.sqrt(np.maximum(squares, 0) / self._features.shape[1]),
            losses=nothing,
            errors=nothing.astype(np.int64),
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
            _Gradient(total, self._scores(by_weights), by_intercepts),
            columns,
            norms=np.abs(by_weights + by_intercepts * self._mean).max(axis=1),
            losses=losses + 0.5 * np.einsum("kd,kd->k", weights, weights),
            errors=errors,
            n_problems=len(points),
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
        logits = times_symmetric(of_rows.astype(np.float32), self._products)
        logits += intercepts.astype(np.float32)
        return logits

    def _evaluation(
        self,
        gradient: _Gradient,
        columns: Columns,
        *,
        norms: Floats,
        losses: Floats,
        errors: NDArray[np.int64],
        n_problems: int,
    ) -> Evaluation:
        """Make means of the sums over the rows; `norms` are those by the weights of features."""
        counts = self._counts[columns]
        return by_problem(
            np.hstack([gradient.by_rows, gradient.by_intercepts]) / counts[:, None],
            self._preconditioner.solve(gradient, columns),
            norms=np.maximum(norms, np.abs(gradient.by_intercepts[:, 0])) / counts,
            values=losses / counts,
            errors=errors,
            n_problems=n_problems,
        )


class _OneSystem:
    """The preconditioner of the start: one system for all classes or labels."""

    def __init__(self, products: Features, loss: Softmax | Binary) -> None:
        self._inverse = InverseOfSum(products.copy(), len(products) * ridge_of(loss))
        self._loss, self._share = loss, len(products) / loss.counts

    def solve(self, gradient: _Gradient, columns: Columns) -> Floats:
        of_rows = self._inverse.times(gradient.total) * self._share[columns, None]
        of_intercepts = gradient.by_intercepts / self._loss.counts[columns, None]
        return self._loss.sharpen(np.hstack([of_rows, of_intercepts]), columns)


class _Systems:
    r"""Newton's systems, one for each class or label, factorised in float32.

    With V the curvatures, :math:`(I + V Q)^{-1} t = t - V^{1/2} S^{-1} V^{1/2} Q t` where
    :math:`S = I + V^{1/2} Q V^{1/2}`.

    **Intercept.** The step of the rows is :math:`a = t_0 - c v_0` with :math:`t_0` and :math:`v_0`
    from t and from the curvatures v, c that of the intercept. The intercept's own equation is
    :math:`v^\top Q a + c\, 1^\top v = r`, r the sum of the residuals, and
    :math:`1^\top (I + V Q) a = 1^\top t - c\, 1^\top v`, so
    :math:`c = (1^\top t_0 - 1^\top t + r) / 1^\top v_0`.

    Raises
    ------
    LinAlgError
        If a label has no curvature left that float32 can tell, or a system cannot be factorised.
    """

    def __init__(self, products: Features, loss: Softmax | Binary, curvatures: Features) -> None:
        self._loss = loss
        self._roots = np.sqrt(curvatures)
        self._factors = [self._factorised(products, roots) for roots in self._roots]
        pairs = zip(curvatures, times_symmetric(curvatures, products), strict=True)
        self._of_curvatures = np.stack([self._apply(k, *pair) for k, pair in enumerate(pairs)])
        self._sums = self._of_curvatures.sum(axis=1, dtype=np.float64)
        if not (self._sums > 0).all():
            raise LinAlgError("no curvature left in float32")

    @staticmethod
    def _factorised(products: Features, roots: Features) -> Features:
        system = products * roots
        system *= roots[:, None]
        add_to_diagonal(system, 1.0)
        return cholesky_factor(system)

    def _apply(
        self, number: int, total: NDArray[np.floating], by_rows: NDArray[np.floating]
    ) -> NDArray[np.floating]:
        """Return the inverse of I + V Q times t, from t and Q t."""
        roots = self._roots[number]
        solved, _ = spotrs(self._factors[number], roots * by_rows, lower=1)
        applied: NDArray[np.floating] = total - roots * solved
        return applied

    def solve(self, gradient: _Gradient, columns: Columns) -> Floats:
        total, by_rows, by_intercepts = gradient
        numbers = np.arange(len(self._roots))[columns]
        steps = np.zeros((len(numbers), total.shape[1] + 1))
        for place, number in enumerate(numbers):
            steps[place, :-1] = self._apply(number, total[place], by_rows[place])
        excess = (steps[:, :-1] - total).sum(axis=1) + by_intercepts[:, 0]
        steps[:, -1] = excess / self._sums[columns]
        steps[:, :-1] -= self._of_curvatures[columns] * steps[:, -1:]
        return self._loss.centred(steps)
