r"""L-BFGS for several convex problems at once, each with its own steps, memory and end.

All problems are evaluated together, which is what makes them fast: one matrix product for the
trial points of all that still run. A problem that has converged leaves the batch.

**Preconditioner.** The caller gives with each gradient :math:`g` also :math:`M^{-1} g`, where M has
about the shape of the Hessian. L-BFGS then starts from :math:`\gamma M^{-1}` instead of
:math:`\gamma I`, which is the same as running it in the variables :math:`M^{1/2} x`.

**Line search on slopes.** A step along :math:`d` is accepted when the slope :math:`g^\top d` has
left its first value behind without turning far beyond zero. For a convex function that is a
decrease, and unlike a comparison of values it holds to the last digits: near the optimum the
value's changes drown in rounding long before the gradient does, above all in float32.

The direction is computed in the compact form of Byrd, Nocedal and Schnabel (1994, Theorem 2.2).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crsbench.probes.base import Floats

#: Pairs of steps and changes of gradient that are remembered.
MEMORY = 10
#: A slope of this share of the first is short of the minimum, or beyond it: the step is changed.
_SHORT, _BEYOND = 0.9, 0.5
_MOST_TRIALS = 20
#: Iterations after which a problem whose gradient has not halved is at the end of its precision.
PATIENCE = 500


def _not_later() -> Floats:
    """Return ``(M, M, M)``: for each next slot, whether one slot was not written after another."""
    ages = (np.arange(MEMORY) - np.arange(MEMORY)[:, None]) % MEMORY
    return (ages[:, :, None] <= ages[:, None, :]).astype(np.float64)


#: Makes products of steps and changes triangular, in the order in which they were written.
_NOT_LATER = _not_later()


class Evaluation(NamedTuple):
    """What an objective says at the points of G problems with P variables.

    Attributes
    ----------
    gradients, preconditioned
        ``(G, P)`` each: the gradient, and the preconditioner's inverse applied to it.
    norms
        ``(G,)`` largest component of the gradient, in the variables that the tolerance is for.
    values, errors
        ``(G,)`` each: the value, and rows on the wrong side. The minimisation needs neither.
    """

    gradients: Floats
    preconditioned: Floats
    norms: Floats
    values: Floats
    errors: NDArray[np.int64]


#: Evaluates points ``(G, P)`` of the problems with the given numbers ``(G,)``.
Objective = Callable[[Floats, NDArray[np.intp]], Evaluation]


@dataclass(frozen=True)
class Minimum:
    """Where each of G problems ended.

    Attributes
    ----------
    points
        ``(G, P)``, the last that were accepted.
    norms, values, errors, iterations
        ``(G,)`` each: what was evaluated there, and the iterations made.
    """

    points: Floats
    norms: Floats
    values: Floats
    errors: NDArray[np.int64]
    iterations: NDArray[np.int64]

    def after(self, earlier: "Minimum") -> "Minimum":
        """Return this end with the iterations of the way to its start."""
        return replace(self, iterations=earlier.iterations + self.iterations)

    def split(self, n_parts: int) -> list["Minimum"]:
        """Return the ends of equal parts of the problems."""
        parts = (np.split(values, n_parts) for values in vars(self).values())
        return [Minimum(*each) for each in zip(*parts, strict=True)]


def minimise(
    objective: Objective,
    start: Floats,
    *,
    tolerance: float,
    max_iterations: int | NDArray[np.int64],
    patience: int = PATIENCE,
) -> Minimum:
    """Minimise G convex problems of P variables.

    Parameters
    ----------
    objective
        Called with the points of the problems that still run, and their numbers.
    start
        ``(G, P)``.
    tolerance
        Norm at which a problem has converged.
    max_iterations
        Cap for all problems, or ``(G,)`` for each.
    patience
        Rounding has ended the descent of a problem whose gradient has not halved in so many
        iterations. Far from the optimum an ill-conditioned one takes hundreds.
    """
    n = len(start)
    found = Minimum(
        start.copy(), np.empty(n), np.empty(n), np.empty(n, np.int64), np.zeros(n, np.int64)
    )
    running = _Running(start.copy(), objective(start, np.arange(n)))
    while True:
        ended = running.ended(tolerance, np.broadcast_to(max_iterations, n), patience)
        if ended.any():
            for name, values in vars(found).items():
                values[running.numbers[ended]] = getattr(running, name)[ended]
            running.keep(~ended)
        if not len(running.numbers):
            return found
        running.move(objective(running.trial(), running.numbers))


class _Memory:
    """The last pairs of G problems, and the products of them that a direction needs.

    Slots are written in turn; an empty one holds zeros and leaves the direction as it is.
    """

    def __init__(self, n_problems: int, n_variables: int) -> None:
        shape = n_problems, MEMORY, n_variables
        self._steps, self._changes, self._preconditioned = (np.zeros(shape) for _ in range(3))
        self._step_change = np.tile(np.eye(MEMORY), (n_problems, 1, 1))
        self._change_change = np.zeros((n_problems, MEMORY, MEMORY))
        self._written = np.zeros(n_problems, np.int64)
        self._scale = np.ones(n_problems)

    def take(self, kept: NDArray[np.bool_]) -> None:
        """Keep some of the problems."""
        for name, values in vars(self).items():
            setattr(self, name, values[kept])

    def add(self, rows: NDArray[np.intp], steps: Floats, changes: Floats, scaled: Floats) -> None:
        """Remember one more pair of some of the problems.

        Parameters
        ----------
        rows
            Which of the problems.
        steps, changes, scaled
            ``(G, P)`` differences of the points, of their gradients, and of their preconditioned
            gradients, for all problems.
        """
        # Not positive where rounding has the last word: there is nothing to learn.
        learns = (_products(steps, changes) > 0) & (_products(changes, scaled) > 0)
        rows = rows[learns[rows]]
        slots = self._written[rows] % MEMORY
        self._steps[rows, slots] = steps[rows]
        self._changes[rows, slots] = changes[rows]
        self._preconditioned[rows, slots] = scaled[rows]
        self._step_change[rows, slots] = _dots(self._changes, steps)[rows]
        self._step_change[rows, :, slots] = _dots(self._steps, changes)[rows]
        products = _dots(self._changes, scaled)[rows]
        self._change_change[rows, slots] = products
        self._change_change[rows, :, slots] = products
        curvature = self._step_change[rows, slots, slots]
        self._scale[rows] = curvature / self._change_change[rows, slots, slots]
        self._written[rows] += 1

    def directions(self, gradients: Floats, preconditioned: Floats) -> Floats:
        """Return the descent directions ``(G, P)``."""
        scale = self._scale[:, None, None]
        upper = self._step_change * _NOT_LATER[self._written % MEMORY]
        of_steps = _dots(self._steps, gradients)[:, :, None]
        of_changes = _dots(self._changes, preconditioned)[:, :, None]
        inverse = np.linalg.inv(upper)
        inner = inverse @ of_steps
        diagonal = np.einsum("gmm->gm", upper)[:, :, None]
        joined = scale * (self._change_change @ inner - of_changes) + diagonal * inner
        outer = inverse.transpose(0, 2, 1) @ joined
        return -(
            self._scale[:, None] * preconditioned
            + _combined(outer, self._steps)
            - _combined(scale * inner, self._preconditioned)
        )


def _products(first: Floats, second: Floats) -> Floats:
    """Return the inner products ``(G,)`` of vectors ``(G, P)``: each as if it were alone."""
    return np.matmul(first[:, None, :], second[:, :, None])[:, 0, 0]


def _dots(memory: Floats, vectors: Floats) -> Floats:
    """Return products ``(G, M)`` of remembered vectors ``(G, M, P)`` and one of each problem."""
    return np.matmul(memory, vectors[:, :, None])[:, :, 0]


def _combined(weights: Floats, memory: Floats) -> Floats:
    """Return sums ``(G, P)`` of remembered vectors ``(G, M, P)``, weighted by ``(G, M, 1)``."""
    return np.matmul(weights.transpose(0, 2, 1), memory)[:, 0, :]


class _Running:
    """The problems that still run: where they are, and the step that each tries next."""

    def __init__(self, start: Floats, evaluation: Evaluation) -> None:
        n = len(start)
        self.numbers = np.arange(n)
        self.points = start
        self.gradients, self.preconditioned, self.norms, self.values, self.errors = evaluation
        self.iterations = np.zeros(n, np.int64)
        self._memory = _Memory(*start.shape)
        self._least, self._since_halved = self.norms.copy(), np.zeros(n, np.int64)
        self._directions, self._slopes = np.empty_like(start), np.empty(n)
        self._steps, self._short, self._beyond = np.empty(n), np.empty(n), np.empty(n)
        self._trials = np.zeros(n, np.int64)
        self._aim(np.arange(n))

    def ended(self, tolerance: float, caps: NDArray[np.int64], patience: int) -> NDArray[np.bool_]:
        """Return which problems have converged, or can or may go no further."""
        return (
            (self.norms <= tolerance)
            | (self.iterations >= caps[self.numbers])
            | (self._trials >= _MOST_TRIALS)
            | (self._since_halved >= patience)
            | ~np.isfinite(self.norms)
        )

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Go on with some of the problems."""
        self._memory.take(kept)
        for name, values in vars(self).items():
            if name != "_memory":
                setattr(self, name, values[kept])

    def trial(self) -> Floats:
        """Return the points ``(G, P)`` to evaluate next."""
        return self.points + self._steps[:, None] * self._directions

    def move(self, evaluation: Evaluation) -> None:
        """Accept the trial points, or change the steps to them."""
        slopes = _products(evaluation.gradients, self._directions)
        short = ~(slopes >= _SHORT * self._slopes)
        beyond = ~(slopes <= -_BEYOND * self._slopes)
        self._accept(np.flatnonzero(~short & ~beyond), evaluation)
        self._retry(np.flatnonzero(short | beyond), slopes)

    def _accept(self, rows: NDArray[np.intp], evaluation: Evaluation) -> None:
        if not len(rows):
            return
        steps = self._steps[:, None] * self._directions
        self._memory.add(
            rows,
            steps,
            evaluation.gradients - self.gradients,
            evaluation.preconditioned - self.preconditioned,
        )
        self.points[rows] += steps[rows]
        for name, values in evaluation._asdict().items():
            getattr(self, name)[rows] = values[rows]
        self.iterations[rows] += 1
        halved = self.norms[rows] <= self._least[rows] / 2
        self._least[rows] = np.where(halved, self.norms[rows], self._least[rows])
        self._since_halved[rows] = np.where(halved, 0, self._since_halved[rows] + 1)
        self._aim(rows)

    def _aim(self, rows: NDArray[np.intp]) -> None:
        """Choose new directions, and the whole step along them."""
        directions = self._memory.directions(self.gradients, self.preconditioned)[rows]
        self._directions[rows] = directions
        self._slopes[rows] = _products(self.gradients[rows], directions)
        self._steps[rows], self._short[rows], self._beyond[rows] = 1.0, 0.0, np.inf
        self._trials[rows] = 0

    def _retry(self, rows: NDArray[np.intp], slopes: Floats) -> None:
        """Lengthen steps that were short; cut those that went beyond into what is left."""
        for row in rows:
            step, slope = self._steps[row], slopes[row]
            if slope < 0:
                self._short[row] = step
            else:
                self._beyond[row] = step
            low, high = self._short[row], self._beyond[row]
            if np.isinf(high):
                self._steps[row] = 4 * step
            else:
                fall = self._slopes[row] - slope
                secant = step * self._slopes[row] / fall if fall else (low + high) / 2
                margin = 0.1 * (high - low)
                self._steps[row] = np.clip(secant, low + margin, high - margin)
            self._trials[row] += 1
