r"""Newton's method for logistic regression on fewer rows than columns, in a weight for each row.

The best weights lie in the span of the rows: :math:`W = A X` with A ``(K, N)`` and X the features
about their mean. With :math:`Q = X X^\top` the logits are :math:`Q A^\top + b`, the penalty is
:math:`\frac\lambda2 \operatorname{tr} A Q A^\top`, and nothing has D columns any more. At the
optimum :math:`A = -R^\top`, the residuals (truth less probability), and A sums to 0 over the rows.

Such rows are separable as a rule. Then the curvature differs from row to row by orders of
magnitude, gradient methods take a hundred iterations, and Newton's method takes fifteen. Its
system :math:`(I + C (I \otimes Q))\, a = t`, C the curvature of the loss by the logits, has N
equations for a label. For a softmax :math:`C_i = \operatorname{diag}(p_i) - p_i p_i^\top`; there N
equations are solved for each class and then N for all of them (Rasmussen and Williams 2006,
algorithm 3.3). The intercepts are free: they are what makes A sum to 0.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri

from crsbench.probes.base import Features, Floats
from crsbench.probes.lbfgs import Minimum
from crsbench.probes.losses import Binary, Softmax

#: A step along which the slope changes sign and keeps more than this share of it is shortened.
_BEYOND = 0.5
_MOST_TRIALS = 30
_EVERY = slice(None)


class _State(NamedTuple):
    """Where the minimisation is: ``(K, N)`` each but for the intercepts ``(K, 1)``."""

    weights: Floats
    intercepts: Floats
    projected: Floats
    residuals: Floats

    def along(self, step: "_State", share: float) -> "_State":
        """Return the state after a share of a step, its residuals not yet those there."""
        return _State(*(old + share * new for old, new in zip(self, step, strict=True)))


class InRows:
    """The objective of a loss and of features, and its minimisation.

    Parameters
    ----------
    features
        ``(N, D)``.
    loss
        Of its N rows.
    """

    def __init__(self, features: Features, loss: Softmax | Binary) -> None:
        wide = features.astype(np.float64)
        self._mean = wide.mean(axis=0)
        self._rows = wide - self._mean
        self._products = self._rows @ self._rows.T
        self._loss = loss
        self._columns = np.arange(len(loss.counts))

    def minimise(self, *, tolerance: float, max_iterations: int) -> tuple[Floats, Minimum]:
        """Return the weights ``(K, D + 1)``, the intercepts last, and how they were reached.

        Parameters
        ----------
        tolerance
            Largest component of the gradient by the weights of the features and the intercepts.
        max_iterations
            Cap. Newton's method also ends where rounding ends its descent.
        """
        n_columns, n = len(self._columns), len(self._rows)
        nothing = np.zeros((n_columns, n))
        state = self._with_residuals(
            _State(nothing, self._loss.intercepts()[:, None], nothing, nothing)
        )
        iterations, norms = 0, self._norms(state)
        while norms.max() > tolerance and iterations < max_iterations:
            moved = self._move(state)
            if moved is None:
                break
            state, iterations = moved, iterations + 1
            norms = self._norms(state)
        return self._original(state), self._minimum(state, norms, iterations)

    def _with_residuals(self, state: _State) -> _State:
        logits = (state.projected + state.intercepts).T.copy()
        residuals = self._loss.residuals(logits, _EVERY, self._columns)
        return state._replace(residuals=np.ascontiguousarray(residuals.T))

    def _move(self, state: _State) -> _State | None:
        """Return the state after a Newton step, or after the share of it that goes down."""
        weights, intercepts = self._solve(state)
        step = _State(
            weights - state.weights,
            intercepts - state.intercepts,
            weights @ self._products - state.projected,
            np.zeros_like(weights),
        )
        first, share = self._slope(state, step), 1.0
        for _ in range(_MOST_TRIALS):
            moved = self._with_residuals(state.along(step, share))
            slope = self._slope(moved, step)
            if slope <= -_BEYOND * first:
                return moved
            share *= max(0.1, first / (first - slope))
        return None

    @staticmethod
    def _slope(state: _State, step: _State) -> float:
        """Return the slope of the summed objective along a step."""
        by_logits = np.sum(state.residuals * (step.projected + step.intercepts))
        return float(by_logits + np.sum(state.weights * step.projected))

    def _norms(self, state: _State) -> Floats:
        """Return ``(G,)`` largest components of the mean gradient in the original variables."""
        by_rows = state.residuals + state.weights
        by_intercept = state.residuals.sum(axis=1, keepdims=True)
        original = by_rows @ self._rows + by_intercept * self._mean
        largest = np.maximum(np.abs(original).max(axis=1), np.abs(by_intercept[:, 0]))
        return (largest / self._loss.counts).reshape(self._loss.n_problems, -1).max(axis=1)

    def _solve(self, state: _State) -> tuple[Floats, Floats]:
        """Return weights and intercepts at the minimum of the quadratic model."""
        logits = state.projected + state.intercepts
        if isinstance(self._loss, Softmax):
            return self._solve_classes(self._loss.probabilities(logits), logits, state.residuals)
        return self._solve_labels(self._loss.curvatures(logits), logits, state.residuals)

    def _solve_labels(
        self, curvature: Floats, logits: Floats, residuals: Floats
    ) -> tuple[Floats, Floats]:
        targets = curvature * logits - residuals
        systems = curvature[:, :, None] * self._products
        systems[:, np.arange(len(self._rows)), np.arange(len(self._rows))] += 1
        free, by_intercept = np.moveaxis(
            np.linalg.solve(systems, np.stack([targets, curvature], axis=2)), 2, 0
        )
        intercepts = free.sum(axis=1, keepdims=True) / by_intercept.sum(axis=1, keepdims=True)
        return free - by_intercept * intercepts, intercepts

    def _solve_classes(self, p: Floats, logits: Floats, residuals: Floats) -> tuple[Floats, Floats]:
        n_classes = len(p)
        targets = p * (logits - np.sum(p * logits, axis=0)) - residuals
        by_intercept = p[:, :, None] * (np.eye(n_classes)[:, None, :] - p.T)
        wanted = np.concatenate([targets[:, :, None], by_intercept], axis=2)
        inverses = np.stack([self._inverse(of_class) for of_class in p])
        explained = inverses @ (self._products @ wanted)
        shared = np.linalg.solve(inverses.sum(axis=0), explained.sum(axis=0))
        solved = wanted - explained + inverses @ shared
        totals = solved.sum(axis=1)
        # Equal intercepts change nothing: the matrix of ones makes them sum to 0.
        intercepts = np.linalg.solve(totals[:, 1:] + 1 / n_classes, totals[:, 0])
        return solved[:, :, 0] - solved[:, :, 1:] @ intercepts, intercepts[:, None]

    def _inverse(self, weights: Floats) -> Floats:
        """Return the inverse ``(N, N)`` of Q + 1 / weights, which may be 0."""
        roots = np.sqrt(weights)
        matrix = self._products * roots
        matrix *= roots[:, None]
        matrix[np.diag_indices_from(matrix)] += 1
        factor, _ = dpotrf(matrix.T, lower=1, clean=0, overwrite_a=1)
        inverse, _ = dpotri(factor, lower=1, overwrite_c=1)
        lower = np.tril(inverse)
        lower += np.tril(inverse, -1).T
        lower *= roots
        lower *= roots[:, None]
        return lower

    def _original(self, state: _State) -> Floats:
        weights = state.weights @ self._rows
        return np.column_stack([weights, state.intercepts[:, 0] - weights @ self._mean])

    def _minimum(self, state: _State, norms: Floats, iterations: int) -> Minimum:
        logits = (state.projected + state.intercepts).T
        losses, errors = self._loss.assess(logits, _EVERY, self._columns)
        penalties = 0.5 * np.sum(state.weights * state.projected, axis=1)
        by_problem = self._loss.n_problems, -1
        return Minimum(
            points=state.weights,
            norms=norms,
            values=((losses + penalties) / self._loss.counts).reshape(by_problem).sum(axis=1),
            errors=errors.reshape(by_problem).sum(axis=1),
            iterations=np.full(self._loss.n_problems, iterations),
        )
