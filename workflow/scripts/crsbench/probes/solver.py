"""How an objective is minimised: float32 goes most of the way, float64 goes on and decides.

Objectives of one size are minimised side by side. Each goes its own way, to the bit; what L-BFGS
does for all of them takes little longer than for one.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from crsbench.probes.base import Floats
from crsbench.probes.lbfgs import PATIENCE, Evaluation, Minimum, Objective, minimise

#: Float32 takes a fit to this share of the tolerance: just at the tolerance the objective may still
#: be above that of another solver that stops there. Below the second number it has no more digits.
_SINGLE_SHARE, _SINGLE_LEAST = 0.4, 3e-7
#: Iterations without progress after which a stage in float32 ends.
_SINGLE_PATIENCE = 50


class Precise(Protocol):
    """An objective of G problems with P variables that can be evaluated in two precisions."""

    @property
    def near(self) -> float:
        """Norm of the gradient at which `refine` is worth its time; 0 where it never is."""

    def start(self) -> Floats:
        """Return the point ``(G, P)`` without weights and with the best intercepts."""

    def refine(self, points: Floats) -> None:
        """Take the preconditioner from points ``(G, P)``, some of them near the optimum."""

    def single(self, points: Floats, numbers: NDArray[np.intp]) -> Evaluation:
        """Evaluate with products in float32; values and errors mean nothing."""

    def double(self, points: Floats, numbers: NDArray[np.intp]) -> Evaluation:
        """Evaluate in float64."""


def solve(objectives: Sequence[Precise], *, tolerance: float, max_iterations: int) -> list[Minimum]:
    """Minimise objectives of one kind and size, each to the tolerance in float64.

    Parameters
    ----------
    tolerance
        Largest component of the gradient at which a problem has converged.
    max_iterations
        Cap for each problem.
    """
    starts = [each.start() for each in objectives]
    n_problems = len(starts[0])
    single = _side_by_side([each.single for each in objectives], n_problems)
    double = _side_by_side([each.double for each in objectives], n_problems)

    def further(end: Minimum, objective: Objective, norm: float, patience: int) -> Minimum:
        left = max_iterations - end.iterations
        return minimise(
            objective, end.points, tolerance=norm, max_iterations=left, patience=patience
        ).after(end)

    single_tolerance = max(_SINGLE_SHARE * tolerance, _SINGLE_LEAST)
    near = max(objectives[0].near, single_tolerance)
    end = minimise(
        single,
        np.concatenate(starts),
        tolerance=near,
        max_iterations=max_iterations,
        patience=_SINGLE_PATIENCE,
    )
    if near > single_tolerance:
        for each, own in zip(objectives, end.split(len(objectives)), strict=True):
            if (own.norms <= near).any():
                each.refine(own.points)
        end = further(end, single, single_tolerance, _SINGLE_PATIENCE)
    return further(end, double, tolerance, PATIENCE).split(len(objectives))


def _side_by_side(evaluations: Sequence[Objective], n_problems: int) -> Objective:
    """Return one evaluation of problems that are numbered through, so many of each objective."""

    def evaluate(points: Floats, numbers: NDArray[np.intp]) -> Evaluation:
        bounds = np.searchsorted(numbers, n_problems * np.arange(len(evaluations) + 1))
        parts = [
            evaluate_own(points[first:last], numbers[first:last] - n_problems * place)
            for place, (evaluate_own, (first, last)) in enumerate(
                zip(evaluations, pairwise(bounds), strict=True)
            )
            if last > first
        ]
        return Evaluation(*map(np.concatenate, zip(*parts, strict=True)))

    return evaluate if len(evaluations) > 1 else evaluations[0]
