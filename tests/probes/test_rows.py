"""The objective in weights of rows: its gradient, and preconditioners that are what they say."""

import warnings

import numpy as np
import pytest
from scipy.special import expit

from crsbench.probes.logistic import fit_rows
from crsbench.probes.objectives import LogisticObjective
from crsbench.probes.problems import problem_of
from crsbench.probes.rows import RowObjective

N, D = 30, 60


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def draw(rng, task, scale=1.0):
    features = (scale * rng.standard_normal((N, D)) + 0.2).astype(np.float32)
    if task == "multiclass":
        return features, np.arange(N) % 3
    labels = (rng.random((N, 2)) < 0.4).astype(float)
    labels[0], labels[1] = 1, 0
    labels[rng.random(labels.shape) < 0.2] = np.nan
    return features, labels


def objective_and_point(rng, task):
    features, labels = draw(rng, task)
    loss = problem_of(labels, task=task).loss
    objective = RowObjective(features, loss)
    point = objective.start()
    return features, labels, loss, objective, point + 0.02 * rng.standard_normal(point.shape)


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_an_evaluation_is_that_of_the_objective_in_weights_of_features(rng, task):
    features, _, loss, objective, point = objective_and_point(rng, task)
    numbers = np.arange(loss.n_problems)
    in_rows = objective.double(point, numbers)
    in_features = LogisticObjective(features, loss)
    weights = objective.weights(point).reshape(len(point), -1)
    expected = in_features.double(weights, numbers)
    np.testing.assert_allclose(in_rows.norms, expected.norms, rtol=1e-9)
    np.testing.assert_allclose(in_rows.values, expected.values, rtol=1e-12)
    np.testing.assert_array_equal(in_rows.errors, expected.errors)


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_float32_evaluates_the_same_gradient(rng, task):
    _, _, loss, objective, point = objective_and_point(rng, task)
    single, double = (
        evaluate(point, np.arange(loss.n_problems))
        for evaluate in (objective.single, objective.double)
    )
    largest = np.abs(double.gradients).max()
    np.testing.assert_allclose(single.gradients, double.gradients, atol=1e-5 * largest)
    assert (single.norms > double.norms / 4).all()
    assert (single.norms < double.norms * 4).all()


def dense_newton_step(features, targets, weights, intercept):
    """Return the step of one label by its full Hessian, intercept last; masked rows left out."""
    known = ~np.isnan(targets)
    rows = np.column_stack([features[known], np.ones(known.sum())]).astype(float)
    p = expit(rows @ np.append(weights, intercept))
    penalty = np.diag(np.append(np.ones(D), 0.0))
    hessian = (rows * (p * (1 - p))[:, None]).T @ rows + penalty
    gradient = rows.T @ (p - targets[known]) + penalty @ np.append(weights, intercept)
    return np.linalg.solve(hessian, gradient)


def test_systems_of_masked_labels_are_newtons_step(rng):
    features, labels, loss, objective, point = objective_and_point(rng, "multilabel")
    objective.refine(point)
    evaluated = objective.double(point, np.arange(loss.n_problems))
    steps = objective.weights(evaluated.preconditioned)
    weights = objective.weights(point)
    for label in range(2):
        expected = dense_newton_step(
            features, labels[:, label], weights[label, :-1], weights[label, -1]
        )
        largest = np.abs(expected).max()
        np.testing.assert_allclose(steps[label], expected, atol=1e-4 * largest)


@pytest.mark.parametrize("refined", [False, True])
@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_preconditioners_are_symmetric_and_go_down(rng, task, refined):
    _, _, loss, objective, point = objective_and_point(rng, task)
    if refined:
        objective.refine(point)
    other = point + 0.02 * rng.standard_normal(point.shape)
    first, second = (objective.double(each, np.arange(loss.n_problems)) for each in (point, other))
    along = np.sum(first.gradients * second.preconditioned, axis=1)
    back = np.sum(second.gradients * first.preconditioned, axis=1)
    np.testing.assert_allclose(along, back, rtol=1e-3, atol=1e-6)
    assert (np.sum(first.gradients * first.preconditioned, axis=1) > 0).all()


def test_without_curvature_the_first_preconditioner_stays(rng):
    features, labels = draw(rng, "multiclass")
    objective = RowObjective(features, problem_of(labels, task="multiclass").loss)
    point = 1e4 * rng.standard_normal(objective.start().shape)  # every row is certain
    before = objective.double(point, np.arange(1)).preconditioned
    objective.refine(point)
    np.testing.assert_array_equal(objective.double(point, np.arange(1)).preconditioned, before)


@pytest.mark.parametrize("scale", [1e2, 1e3, 1e5])
@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_rows_far_from_standardised_end_with_a_status_and_no_warning(rng, task, scale):
    features, labels = draw(rng, task, scale)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = fit_rows(
            features,
            labels,
            task=task,
            n_classes=3 if task == "multiclass" else 2,
            tolerance=1e-6,
            max_iterations=300,
        )
    assert fitted.status in ("converged", "not_converged")
    assert np.isfinite(fitted.coefficients).all()
    assert fitted.iterations <= 300
