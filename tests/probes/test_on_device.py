"""Torch's products against NumPy's: the same fits, ends and diagnostics; the same bytes again."""

import numpy as np
import pytest
import torch

from crsbench.errors import CrsBenchError
from crsbench.probes import on_device
from crsbench.probes.base import Subset
from crsbench.probes.cholesky import cholesky_factor
from crsbench.probes.engines import NUMPY
from crsbench.probes.logistic import PROBE, fit_logistic, fit_rows, score_logistic
from crsbench.probes.losses import Binary, Softmax
from crsbench.probes.on_device import (
    DeviceObjective,
    exact_products,
    torch_engine,
)

TOLERANCE = 1e-8
CPU = torch.device("cpu")
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.fixture(params=DEVICES)
def engine(request, monkeypatch):
    """Return an engine of torch; its blocks are small, so that fits have several."""
    monkeypatch.setattr(on_device, "_BLOCK", 2048)
    return torch_engine(request.param)


def draw(rng, n, d, n_columns, *, task):
    features = rng.standard_normal((n, d)) * np.arange(1, d + 1) ** -0.3
    scores = features @ rng.standard_normal((d, n_columns)) + rng.gumbel(size=(n, n_columns))
    features = features.astype(np.float32)
    if task == "multiclass":
        return features, scores.argmax(axis=1)
    targets = (scores > 0.5).astype(float)
    targets[rng.random(targets.shape) < 0.25] = np.nan
    return features, targets


def fit(features, targets, engine, *, task, n_classes, tolerance=TOLERANCE, cap=1000):
    with engine.exact():
        return fit_rows(
            features,
            targets,
            engine=engine,
            task=task,
            n_classes=n_classes,
            tolerance=tolerance,
            max_iterations=cap,
        )


def fit_both(engine, rng, task, n, d, n_columns, **settings):
    drawn = draw(rng, n, d, n_columns, task=task)
    return [
        fit(*drawn, each, task=task, n_classes=n_columns, **settings) for each in (NUMPY, engine)
    ]


CASES = [
    ("multiclass", 300, 30, 4),
    ("multiclass", 300, 30, 2),
    ("multilabel", 300, 30, 4),
    ("multiclass", 220, 140, 3),
]


@pytest.mark.parametrize(("task", "n", "d", "n_columns"), CASES)
def test_a_fit_is_that_of_numpy(engine, rng, task, n, d, n_columns):
    ours, theirs = fit_both(engine, rng, task, n, d, n_columns)
    assert (theirs.status, theirs.reason) == (ours.status, ours.reason)
    assert theirs.status == "converged"
    assert theirs.gradient_norm <= TOLERANCE
    assert theirs.iterations == pytest.approx(ours.iterations, rel=0.15)  # rounding moves the way
    # With lambda = 1/N points with gradients within the tolerance are about N times that apart.
    np.testing.assert_allclose(theirs.coefficients, ours.coefficients, atol=n * TOLERANCE)
    np.testing.assert_allclose(theirs.intercept, ours.intercept, atol=n * TOLERANCE)
    assert theirs.objective == pytest.approx(ours.objective, abs=1e-12)


def test_fits_with_fewer_rows_than_columns_stay_on_the_cpu(engine, rng):
    ours, theirs = fit_both(engine, rng, "multiclass", 40, 60, 3)
    np.testing.assert_array_equal(theirs.coefficients, ours.coefficients)


@pytest.mark.parametrize(("n", "d"), [(200, 20)])
def test_separable_rows_are_recorded_as_such(engine, rng, n, d):
    features = rng.standard_normal((n, d), dtype=np.float32)
    labels = (features[:, 0] > 0).astype(int)
    features[:, 0] += 4 * np.sign(features[:, 0])
    ours, theirs = (fit(features, labels, each, task="multiclass", n_classes=2)
                    for each in (NUMPY, engine))  # fmt: skip
    assert ours.status == theirs.status == "converged"
    assert ours.reason == theirs.reason
    assert "separable" in theirs.reason
    np.testing.assert_allclose(theirs.coefficients, ours.coefficients, atol=n * TOLERANCE)


def test_classes_and_labels_that_cannot_be_fitted_end_as_in_numpy(engine, rng):
    features, targets = draw(rng, 100, 8, 3, task="multilabel")
    targets[:, 1] = 1.0
    labels = np.where(rng.random(100) < 0.5, 1, 3)
    for settings in (
        {"targets": targets, "task": "multilabel", "n_classes": 3},
        {"targets": labels, "task": "multiclass", "n_classes": 5},
        {"targets": np.ones(100, int), "task": "multiclass", "n_classes": 3},
    ):
        ours, theirs = (fit(features, engine=each, **settings) for each in (NUMPY, engine))
        assert (theirs.status, theirs.reason) == (ours.status, ours.reason)
        np.testing.assert_array_equal(np.isfinite(theirs.intercept), np.isfinite(ours.intercept))
        np.testing.assert_array_equal(np.isnan(theirs.intercept), np.isnan(ours.intercept))
    assert theirs.status == "single_class"


@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_features_that_cannot_be_summed_are_the_same_typed_failure(engine, rng, value):
    features, labels = draw(rng, 100, 8, 3, task="multiclass")
    features[4, 2] = value
    ours, theirs = (fit(features, labels, each, task="multiclass", n_classes=3)
                    for each in (NUMPY, engine))  # fmt: skip
    assert (theirs.status, theirs.reason) == (ours.status, ours.reason)
    assert theirs.status == "failed"


def test_a_matrix_without_a_factor_is_the_error_of_numpys_engine():
    matrix = np.diag([1.0, 1.0, -1.0]).astype(np.float32)
    with pytest.raises(np.linalg.LinAlgError) as theirs:
        on_device._cholesky(torch.as_tensor(matrix))
    with pytest.raises(np.linalg.LinAlgError) as ours:
        cholesky_factor(matrix)
    assert str(theirs.value) == str(ours.value)


def test_reaching_the_cap_is_recorded(engine, rng):
    ours, theirs = fit_both(engine, rng, "multiclass", 300, 30, 4, cap=3)
    assert ours.status == theirs.status == "not_converged"
    assert ours.iterations == theirs.iterations == 3
    assert "after 3 iterations" in theirs.reason


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("kind", ["softmax", "labels"])
def test_an_evaluation_is_that_of_numpy(engine, rng, kind, precision):
    task = "multiclass" if kind == "softmax" else "multilabel"
    features, targets = draw(rng, 300, 30, 4, task=task)
    if kind == "softmax":
        loss = Softmax((np.arange(4)[:, None] == targets).astype(np.float32))
    else:
        loss = Binary.of(targets)
    numbers = np.array([0]) if kind == "softmax" else np.array([1, 3])  # labels 0 and 2 have ended
    with engine.exact():
        objectives = [each.objective(features, loss) for each in (NUMPY, engine)]
        points = 0.3 * rng.standard_normal((len(numbers), 4 // loss.n_problems * 31))
        ours, theirs = (getattr(each, precision)(points, numbers) for each in objectives)
    rtol = 1e-4 if precision == "single" else 1e-12
    np.testing.assert_allclose(theirs.gradients, ours.gradients, atol=rtol * ours.norms.max())
    np.testing.assert_allclose(theirs.norms, ours.norms, rtol=rtol)
    largest = np.abs(ours.preconditioned).max()  # the factor is in float32 on either side
    np.testing.assert_allclose(theirs.preconditioned, ours.preconditioned, atol=1e-4 * largest)
    np.testing.assert_allclose(theirs.values, ours.values, rtol=1e-12)
    np.testing.assert_array_equal(theirs.errors, ours.errors)


@pytest.fixture
def cell(rng):
    """A train split of three classes and training sets of it, wide and tall."""
    features, labels = draw(rng, 300, 100, 3, task="multiclass")
    rows = [np.sort(rng.permutation(300)[:n]) for n in (20, 90, 150)] + [np.arange(300)]
    return features, labels, [Subset(len(of_set) / 300, 0, of_set) for of_set in rows]


SETTINGS = {"task": "multiclass", "n_classes": 3, "tolerance": 1e-8, "max_iterations": 1000}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_cell_is_fitted_and_scored_as_in_numpy(engine, cell, threads):
    features, labels, subsets = cell
    before = features.copy()
    logits = []
    for each in (NUMPY, engine):
        fits = fit_logistic(features, labels, subsets, threads=threads, engine=each, **SETTINGS)
        logits.append(score_logistic(fits, features, threads=threads, engine=each))
    np.testing.assert_array_equal(features, before)
    assert logits[1].shape == (4, 300, 3)
    np.testing.assert_allclose(logits[1], logits[0], atol=1e-5)


def test_scores_are_those_of_numpy_also_where_a_class_is_absent(engine, rng):
    coefficients, features = rng.standard_normal((6, 3)), rng.standard_normal((5, 6))
    intercepts = np.array([-np.inf, np.nan, 1.0])
    with engine.exact():
        ours, theirs = (each.scorer(coefficients, intercepts)(features.astype(np.float32))
                        for each in (NUMPY, engine))  # fmt: skip
    np.testing.assert_allclose(theirs, ours, rtol=1e-12)


def test_a_cell_fitted_twice_has_the_same_bytes(engine, cell):
    twice = []
    for _ in range(2):
        fits = fit_logistic(*cell, threads=1, engine=engine, **SETTINGS)
        logits = PROBE.score(fits, cell[0], threads=1, engine=engine).tobytes()
        twice.append((logits, [(f.iterations, f.gradient_norm, f.objective) for f in fits]))
    assert twice[0] == twice[1]


def test_products_are_exact_repeatable_and_of_one_thread_and_settings_come_back():
    def settings():
        return (
            torch.get_num_threads(),
            torch.get_float32_matmul_precision(),
            torch.get_deterministic_debug_mode(),
        )

    before = settings()
    torch.set_float32_matmul_precision("medium")
    try:
        with exact_products(CPU):
            assert settings() == (1, "highest", 2)
        assert settings() == (before[0], "medium", before[2])
    finally:
        torch.set_float32_matmul_precision(before[1])


def test_too_little_memory_on_the_device_is_an_error_of_one_line():
    story = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has\n1.00 GiB"
    with (
        pytest.raises(CrsBenchError, match=r"memory of cpu \(CUDA out of memory\); run fewer"),
        exact_products(CPU),
    ):
        raise torch.OutOfMemoryError(story)


def test_the_features_are_not_copied_to_where_they_are(rng):
    features, labels = draw(rng, 100, 10, 3, task="multiclass")
    loss = Softmax((np.arange(3)[:, None] == labels).astype(np.float32))
    objective = DeviceObjective(features, loss, device=CPU)
    assert objective._rows.data_ptr() == features.ctypes.data
