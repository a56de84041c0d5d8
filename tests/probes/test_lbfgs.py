"""The solver on problems whose minima are known: quadratics, and a function with a kink's look."""

import numpy as np
import pytest

from crsbench.probes.lbfgs import MEMORY, Evaluation, minimise


class Quadratics:
    """Half of x'Ax - b'x for several A and b, with a preconditioner of their diagonals' choice."""

    def __init__(self, rng, n_problems, n_variables, *, condition=100.0, preconditioner=None):
        rotation = np.linalg.qr(rng.standard_normal((n_problems, n_variables, n_variables)))[0]
        values = np.geomspace(1, condition, n_variables)
        self.matrices = rotation * values @ rotation.swapaxes(1, 2)
        self.targets = rng.standard_normal((n_problems, n_variables))
        exact = np.linalg.inv(self.matrices)
        self.preconditioners = exact if preconditioner == "exact" else np.eye(n_variables)[None]
        self.minima = np.linalg.solve(self.matrices, self.targets[:, :, None])[:, :, 0]
        self.evaluated = []

    def __call__(self, points, numbers):
        self.evaluated.append(numbers.copy())
        preconditioners = np.broadcast_to(self.preconditioners, self.matrices.shape)[numbers]
        products = np.einsum("gpq,gq->gp", self.matrices[numbers], points)
        gradients = products - self.targets[numbers]
        return Evaluation(
            gradients,
            np.einsum("gpq,gq->gp", preconditioners, gradients),
            np.abs(gradients).max(axis=1),
            np.sum(points * (0.5 * products - self.targets[numbers]), axis=1),
            np.zeros(len(points), np.int64),
        )


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def run(objective, *, tolerance=1e-10, cap=500):
    start = np.zeros_like(objective.targets)
    return minimise(objective, start, tolerance=tolerance, max_iterations=cap)


@pytest.mark.parametrize("n_variables", [1, 5, 3 * MEMORY])
def test_quadratics_are_minimised(rng, n_variables):
    quadratics = Quadratics(rng, 4, n_variables)
    found = run(quadratics)
    np.testing.assert_allclose(found.points, quadratics.minima, atol=1e-9)
    assert (found.norms <= 1e-10).all()
    values = -0.5 * np.sum(quadratics.minima * quadratics.targets, axis=1)
    np.testing.assert_allclose(found.values, values, atol=1e-12)


@pytest.mark.parametrize(("n_variables", "condition"), [(100, 1e4), (60, 1e5)])
def test_a_gradient_that_grows_for_long_is_not_the_end(rng, n_variables, condition):
    quadratics = Quadratics(rng, 1, n_variables, condition=condition)
    found = run(quadratics, tolerance=1e-6, cap=5000)
    assert found.norms[0] <= 1e-6
    early = minimise(
        quadratics,
        np.zeros_like(quadratics.targets),
        tolerance=1e-6,
        max_iterations=5000,
        patience=30,
    )
    assert early.norms[0] > 1e-6


def test_the_inverse_hessian_as_preconditioner_needs_one_step(rng):
    found = run(Quadratics(rng, 3, 30, condition=1e6, preconditioner="exact"), tolerance=1e-9)
    assert (found.iterations == 1).all()


def test_a_problem_goes_as_it_would_alone(rng):
    quadratics = Quadratics(rng, 3, 20)
    together = run(quadratics)
    for number in range(3):
        alone = Quadratics(rng, 1, 20)
        alone.matrices = quadratics.matrices[[number]]
        alone.targets = quadratics.targets[[number]]
        found = run(alone)
        np.testing.assert_allclose(found.points[0], together.points[number], atol=1e-12)
        assert found.iterations[0] == together.iterations[number]


def test_a_problem_that_has_converged_is_evaluated_no_more(rng):
    quadratics = Quadratics(rng, 2, 20)
    quadratics.targets[0] = 0
    run(quadratics)
    assert [list(numbers) for numbers in quadratics.evaluated[:2]] == [[0, 1], [1]]
    assert all(list(numbers) == [1] for numbers in quadratics.evaluated[1:])


def test_the_cap_holds_for_each_problem(rng):
    found = run(Quadratics(rng, 3, 30), cap=np.array([2, 0, 500]))
    np.testing.assert_array_equal(found.iterations[:2], [2, 0])
    assert found.norms[2] <= 1e-10


def test_steps_that_turn_far_beyond_the_minimum_are_shortened():
    """The curvature of log cosh falls off so fast that the first whole steps overshoot."""

    def stiff(points, numbers):
        gradients = np.tanh(30 * (points - 1)) + 1e-3 * points
        norms, values = np.abs(gradients).max(axis=1), np.full(len(points), np.nan)
        return Evaluation(gradients, gradients, norms, values, np.zeros(len(points), np.int64))

    found = minimise(stiff, np.full((1, 1), 9.0), tolerance=1e-9, max_iterations=100)
    assert found.norms[0] <= 1e-9


def test_a_tolerance_that_rounding_denies_ends_the_descent(rng):
    found = run(Quadratics(rng, 2, 10), tolerance=0.0, cap=100_000)
    assert (found.norms < 1e-12).all()
    assert (found.iterations < 1_000).all()


def test_a_gradient_that_is_not_finite_ends_the_problem_and_no_other(rng):
    quadratics = Quadratics(rng, 2, 10)
    quadratics.targets[0, 3] = np.nan
    found = run(quadratics)
    assert np.isnan(found.norms[0])
    assert found.iterations[0] == 0
    assert found.norms[1] <= 1e-10


def test_a_step_without_curvature_is_not_remembered_and_ends_no_other_problem():
    """Two problems: a quadratic, and one whose gradient does not change at all."""

    def objective(points, numbers):
        gradients = np.where(numbers[:, None] == 0, points - 1, np.full_like(points, 2.0))
        return Evaluation(
            gradients,
            gradients,
            np.abs(gradients).max(axis=1),
            np.zeros(len(points)),
            np.zeros(len(points), np.int64),
        )

    found = minimise(objective, np.zeros((2, 3)), tolerance=1e-9, max_iterations=50)
    np.testing.assert_allclose(found.points[0], 1)
    assert found.norms[0] <= 1e-9
    assert found.norms[1] == 2
    assert np.isfinite(found.points).all()


def test_a_problem_of_many_variables_goes_as_it_would_alone(rng):
    targets = rng.standard_normal((3, 20_000))
    scales = np.geomspace(1, 50, 20_000)

    def objective(points, numbers):
        gradients = scales * (points - targets[numbers])
        norms = np.abs(gradients).max(axis=1)
        return Evaluation(gradients, gradients, norms, norms, np.zeros(len(points), np.int64))

    together = minimise(objective, np.zeros_like(targets), tolerance=1e-6, max_iterations=200)
    for number in range(3):

        def alone(points, _numbers, number=number):
            return objective(points, np.array([number]))

        own = minimise(alone, np.zeros((1, 20_000)), tolerance=1e-6, max_iterations=200)
        np.testing.assert_array_equal(own.points[0], together.points[number])
