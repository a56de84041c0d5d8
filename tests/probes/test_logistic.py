"""The logistic probe against its optimality conditions, scikit-learn, and itself in disguise."""

import tracemalloc

import numpy as np
import pytest
from scipy.special import expit, logsumexp, softmax
from scipy.stats import ortho_group
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from crsbench.probes import logistic, rows
from crsbench.probes.base import Subset
from crsbench.probes.logistic import PROBE, LogisticFit, fit_logistic, fit_rows, fit_sets

TOLERANCE = 1e-8


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def draw(rng, n, d, n_classes):
    features = rng.standard_normal((n, d)) * np.arange(1, d + 1) ** -0.3
    features = features.astype(np.float32)
    scores = features @ rng.standard_normal((d, n_classes)) + rng.gumbel(size=(n, n_classes))
    labels = scores.argmax(axis=1)
    labels[:n_classes] = np.arange(n_classes)
    return features, labels


def draw_multilabel(rng, n, d, n_labels):
    features = rng.standard_normal((n, d), dtype=np.float32)
    scores = features @ rng.standard_normal((d, n_labels)) + rng.logistic(size=(n, n_labels))
    targets = (scores > 0.5).astype(float)
    targets[rng.random(targets.shape) < 0.25] = np.nan
    return features, targets


def fit(features, targets, *, task="multiclass", n_classes, tolerance=TOLERANCE, cap=10_000):
    return fit_rows(
        features, targets, task=task, n_classes=n_classes, tolerance=tolerance, max_iterations=cap
    )


def multinomial_objective(features, labels, weights, intercept):
    """The mean objective, sample by sample."""
    loss = 0.0
    for x, label in zip(features, labels, strict=True):
        z = x @ weights + intercept
        loss += logsumexp(z) - z[label]
    return loss / len(labels) + (weights**2).sum() / (2 * len(labels))


def multinomial_gradient(features, labels, weights, intercept):
    """Its gradient by weights and intercept, as a sum of outer products."""
    by_weights, by_intercept = weights / len(labels), np.zeros_like(intercept)
    for x, label in zip(features, labels, strict=True):
        error = softmax(x @ weights + intercept)
        error[label] -= 1
        by_weights = by_weights + np.outer(x, error) / len(labels)
        by_intercept = by_intercept + error / len(labels)
    return by_weights, by_intercept


@pytest.mark.parametrize(("n", "d"), [(60, 10), (40, 40), (25, 70), (8, 200), (135, 150)])
def test_the_gradient_at_the_solution_is_below_the_tolerance_and_as_recorded(rng, n, d):
    features, labels = draw(rng, n, d, 4)
    fitted = fit(features, labels, n_classes=4)
    parts = multinomial_gradient(features, labels, fitted.coefficients, fitted.intercept)
    norm = max(np.abs(part).max() for part in parts)
    assert fitted.status == "converged"
    assert norm <= TOLERANCE
    assert norm == pytest.approx(fitted.gradient_norm, rel=1e-3)
    objective = multinomial_objective(features, labels, fitted.coefficients, fitted.intercept)
    assert fitted.objective == pytest.approx(objective, abs=1e-12)


@pytest.mark.parametrize(("n", "d"), [(60, 90), (12, 60)])
@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_newtons_systems_change_the_way_and_not_the_optimum(rng, monkeypatch, task, n, d):
    features, targets = (draw if task == "multiclass" else draw_multilabel)(rng, n, d, 4)
    with_systems = fit(features, targets, task=task, n_classes=4)
    monkeypatch.setattr(rows, "SYSTEM_ROWS", 0)
    without = fit(features, targets, task=task, n_classes=4)
    assert with_systems.status == without.status == "converged"
    assert with_systems.iterations < without.iterations
    np.testing.assert_allclose(with_systems.coefficients, without.coefficients, atol=1e-6)
    np.testing.assert_allclose(with_systems.intercept, without.intercept, atol=1e-6)
    assert with_systems.objective == pytest.approx(without.objective, abs=1e-12)


def test_every_step_away_from_the_solution_raises_the_objective(rng):
    features, labels = draw(rng, 30, 6, 3)
    fitted = fit(features, labels, n_classes=3)
    for _ in range(20):
        step = 1e-2 * rng.standard_normal((6, 3))
        moved = multinomial_objective(
            features, labels, fitted.coefficients + step, fitted.intercept
        )
        assert moved > fitted.objective


@pytest.mark.parametrize(
    ("n", "d", "n_classes"), [(80, 12, 5), (30, 60, 3), (60, 20, 2), (20, 40, 2), (150, 200, 3)]
)
def test_coefficients_and_probabilities_agree_with_scikit_learn(rng, n, d, n_classes):
    features, labels = draw(rng, n, d, n_classes)
    fitted = fit(features, labels, n_classes=n_classes, tolerance=1e-12)
    oracle = LogisticRegression(tol=1e-12, max_iter=100_000).fit(features.astype(float), labels)
    p = softmax(fitted.logits(features), axis=1)
    np.testing.assert_allclose(p, oracle.predict_proba(features), atol=1e-6)
    ours = fitted.coefficients[:, 1] * 2 if n_classes == 2 else fitted.coefficients.T
    np.testing.assert_allclose(ours, np.squeeze(oracle.coef_), atol=1e-6)


def test_the_objective_is_never_above_that_of_scikit_learn(rng):
    features, labels = draw(rng, 50, 80, 4)
    fitted = fit(features, labels, n_classes=4)
    oracle = LogisticRegression(tol=1e-12, max_iter=100_000).fit(features.astype(float), labels)
    theirs = multinomial_objective(features, labels, oracle.coef_.T, oracle.intercept_)
    assert fitted.objective <= theirs + 1e-14


@pytest.mark.parametrize(("n", "d"), [(60, 8), (40, 90)])
def test_each_masked_label_is_fitted_on_its_own_rows_alone(rng, n, d):
    features, targets = draw_multilabel(rng, n, d, 4)
    together = fit(features, targets, task="multilabel", n_classes=4)
    for k in range(4):
        used = ~np.isnan(targets[:, k])
        oracle = LogisticRegression(tol=1e-12, max_iter=100_000).fit(
            features[used].astype(float), targets[used, k]
        )
        np.testing.assert_allclose(together.coefficients[:, k], oracle.coef_[0], atol=1e-5)
        assert together.intercept[k] == pytest.approx(oracle.intercept_[0], abs=1e-5)


def test_multilabel_gradient_is_that_of_every_label_with_its_own_lambda(rng):
    features, targets = draw_multilabel(rng, 50, 12, 3)
    fitted = fit(features, targets, task="multilabel", n_classes=3)
    for k in range(3):
        used = np.flatnonzero(~np.isnan(targets[:, k]))
        w, b = fitted.coefficients[:, k], fitted.intercept[k]
        errors = [expit(features[i] @ w + b) - targets[i, k] for i in used]
        by_weights = sum(e * features[i] for e, i in zip(errors, used, strict=True)) + w
        assert np.abs(by_weights / len(used)).max() <= TOLERANCE
        assert abs(np.mean(errors)) <= TOLERANCE


def test_two_classes_are_one_binary_problem(rng):
    features, labels = draw(rng, 40, 6, 2)
    softmaxed = fit(features, labels, n_classes=2).logits(features)
    binary = fit(features, labels[:, None].astype(float), task="multilabel", n_classes=1)
    np.testing.assert_allclose(
        softmaxed[:, 1] - softmaxed[:, 0], binary.logits(features)[:, 0], atol=1e-6
    )


def test_ordinal_grades_are_fitted_as_classes(rng):
    features, labels = draw(rng, 40, 6, 5)
    as_grades = fit(features, labels, task="ordinal", n_classes=5)
    as_classes = fit(features, labels, task="multiclass", n_classes=5)
    np.testing.assert_array_equal(as_grades.coefficients, as_classes.coefficients)


def test_rows_and_columns_path_agree(rng):
    features, labels = draw(rng, 30, 20, 3)
    wide = np.hstack([features, np.zeros((30, 25))])
    narrow_fit, wide_fit = fit(features, labels, n_classes=3), fit(wide, labels, n_classes=3)
    np.testing.assert_allclose(wide_fit.coefficients[:20], narrow_fit.coefficients, atol=1e-6)
    np.testing.assert_allclose(wide_fit.coefficients[20:], 0, atol=1e-12)
    np.testing.assert_allclose(wide_fit.intercept, narrow_fit.intercept, atol=1e-6)


@pytest.mark.parametrize(("n", "d"), [(50, 12), (15, 30)])
def test_rotating_the_features_rotates_the_coefficients(rng, n, d):
    features, labels = draw(rng, n, d, 3)
    rotation = ortho_group.rvs(d, random_state=rng)
    plain, rotated = (
        fit(features, labels, n_classes=3),
        fit(features @ rotation, labels, n_classes=3),
    )
    np.testing.assert_allclose(rotation @ rotated.coefficients, plain.coefficients, atol=1e-5)


def test_renaming_classes_permutes_the_columns(rng):
    features, labels = draw(rng, 50, 8, 4)
    new_name = np.array([2, 0, 3, 1])
    plain, renamed = (fit(features, y, n_classes=4) for y in (labels, new_name[labels]))
    np.testing.assert_allclose(renamed.coefficients[:, new_name], plain.coefficients, atol=1e-6)


def test_row_order_does_not_matter(rng):
    features, labels = draw(rng, 50, 8, 4)
    order = rng.permutation(50)
    plain, shuffled = (
        fit(features, labels, n_classes=4),
        fit(features[order], labels[order], n_classes=4),
    )
    np.testing.assert_allclose(shuffled.coefficients, plain.coefficients, atol=1e-6)


def test_the_same_fit_twice_is_the_same_to_the_bit(rng):
    features, labels = draw(rng, 50, 80, 4)
    one, two = (fit(features, labels, n_classes=4) for _ in range(2))
    np.testing.assert_array_equal(one.coefficients, two.coefficients)
    assert (one.iterations, one.gradient_norm) == (two.iterations, two.gradient_norm)


def test_a_constant_column_gets_no_weight(rng):
    features, labels = draw(rng, 50, 8, 3)
    features[:, 2] = 0.0  # what the standardiser makes of a constant
    fitted = fit(features, labels, n_classes=3)
    np.testing.assert_allclose(fitted.coefficients[2], 0, atol=1e-12)
    assert fitted.status == "converged"


def test_duplicated_columns_share_the_weight(rng):
    features, labels = draw(rng, 40, 5, 3)
    fitted = fit(np.hstack([features, features]), labels, n_classes=3)
    np.testing.assert_allclose(fitted.coefficients[:5], fitted.coefficients[5:], atol=1e-6)


def test_separable_classes_converge_to_finite_weights_and_are_recorded_as_such():
    features = np.array([[-1.0], [-2.0], [1.0], [2.0]])
    fitted = fit(features, np.array([0, 0, 1, 1]), n_classes=2)
    assert fitted.status == "converged"
    assert "separable" in fitted.reason
    assert np.isfinite(fitted.coefficients).all()
    assert fit(features, np.array([0, 1, 0, 1]), n_classes=2).reason is None


def test_of_labels_a_record_says_which_are_separable(rng):
    features = rng.standard_normal((60, 3))
    features += 3 * np.sign(features)  # clear of the boundary, which the penalty moves
    noisy = (features[:, 1] + 2 * rng.standard_normal(60) > 0).astype(float)
    labels = np.column_stack([noisy, features[:, 0] > 0, np.zeros(60), noisy, features[:, 2] > 0])
    fitted = fit(features, labels, task="multilabel", n_classes=5)
    assert fitted.status == "converged"
    assert fitted.reason.startswith("separable: ")
    assert fitted.reason.endswith("(labels 1, 4)")
    separable = fit(features, labels[:, [1, 4]], task="multilabel", n_classes=2)
    assert separable.reason.endswith("the weights")  # all of them


def test_of_labels_a_record_says_which_have_not_converged(rng):
    features = rng.standard_normal((60, 3))
    noise = rng.standard_normal((60, 3)) * [0.3, 1, 3]
    labels = (features + noise > 0).astype(float)
    shown = set()
    for cap in range(1, 20):
        fitted = fit(features, labels, task="multilabel", n_classes=3, cap=cap)
        errors = expit(features @ fitted.coefficients + fitted.intercept) - labels
        by_weights = (features.T @ errors + fitted.coefficients) / 60
        norms = np.abs([*by_weights, errors.mean(axis=0)]).max(axis=0)
        left = np.flatnonzero(norms > TOLERANCE)
        of = f" (labels {', '.join(map(str, left))})" if len(left) < 3 else ""
        expected = f"above the tolerance after {cap} iterations, the cap{of}"
        assert (fitted.reason or "").endswith(expected) == (len(left) > 0)
        shown.add(len(left))
    assert {0, 3} < shown


@pytest.fixture
def cell(rng):
    """A train split of three classes and some training sets of it, wide and tall."""
    features, labels = draw(rng, 300, 40, 3)
    rows = [np.sort(rng.permutation(300)[:n]) for n in (20, 60, 150, 20)] + [np.arange(300)]
    subsets = [Subset(len(of_set) / 300, 0, of_set) for of_set in rows]
    return np.ascontiguousarray(features), labels, subsets


def fit_subsets(cell, *, threads):
    return fit_logistic(
        *cell,
        threads=threads,
        task="multiclass",
        n_classes=3,
        tolerance=1e-6,
        max_iterations=1000,
    )


@pytest.mark.parametrize("small", [800, 50])
def test_fits_of_a_cell_are_those_of_their_rows_whatever_the_threads(cell, monkeypatch, small):
    monkeypatch.setattr(logistic, "SYSTEM_ROWS", small)
    features, labels, subsets = cell
    before = features.copy()
    one, many, again = (fit_subsets(cell, threads=threads) for threads in (1, 3, 3))
    np.testing.assert_array_equal(features, before)
    for subset, *fits in zip(subsets, one, many, again, strict=True):
        rows = features[subset.rows], labels[subset.rows]
        with threadpool_limits(1):  # as in a cell
            fits.append(fit(*rows, n_classes=3, tolerance=1e-6, cap=1000))
        for fitted in fits:
            np.testing.assert_array_equal(fitted.coefficients, fits[0].coefficients)
            np.testing.assert_array_equal(fitted.intercept, fits[0].intercept)
            assert fitted.gradient_norm == fits[0].gradient_norm


def test_small_sets_share_a_thread_and_large_ones_follow_by_size():
    assert logistic._tasks([20, 60, 900, 20, 1000]) == [[[0, 3], [1]], [[4]], [[2]]]
    assert logistic._tasks([900]) == [[[0]]]


@pytest.mark.parametrize(
    ("n", "task"), [(30, "multiclass"), (30, "multilabel"), (90, "multilabel")]
)
def test_a_fit_beside_others_is_the_fit_alone_to_the_bit(rng, n, task):
    drawn = draw if task == "multiclass" else draw_multilabel
    sets = [drawn(rng, n, 60, 4) for _ in range(4)]
    settings = {"task": task, "n_classes": 4, "tolerance": 1e-7, "max_iterations": 1000}
    together = fit_sets(sets, **settings)
    for of_set, fitted in zip(sets, together, strict=True):
        alone = fit_rows(*of_set, **settings)
        assert alone.status == fitted.status == "converged"
        assert alone.iterations == fitted.iterations
        np.testing.assert_array_equal(alone.coefficients, fitted.coefficients)
        np.testing.assert_array_equal(alone.intercept, fitted.intercept)


def test_sets_of_other_widths_are_the_fits_alone_too(rng):
    """Tall rows of 60 columns and 60 wide rows have points of one size."""
    sets = [draw(rng, 90, 60, 3), draw(rng, 60, 100, 3)]
    settings = {"task": "multiclass", "n_classes": 3, "tolerance": 1e-7, "max_iterations": 1000}
    for of_set, fitted in zip(sets, fit_sets(sets, **settings), strict=True):
        alone = fit_rows(*of_set, **settings)
        assert alone.iterations == fitted.iterations
        np.testing.assert_array_equal(alone.coefficients, fitted.coefficients)


def test_sets_that_cannot_be_fitted_do_not_disturb_those_beside_them(rng):
    features, labels = draw(rng, 30, 60, 4)
    broken = features.copy()
    broken[3, 4] = np.nan
    sets = [(features, labels), (features, np.zeros(30, int)), (broken, labels)]
    settings = {"task": "multiclass", "n_classes": 4, "tolerance": 1e-7, "max_iterations": 1000}
    fits = fit_sets(sets, **settings)
    assert [fitted.status for fitted in fits] == ["converged", "single_class", "failed"]
    np.testing.assert_array_equal(
        fits[0].coefficients, fit_rows(features, labels, **settings).coefficients
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_all_fits_score_a_set_as_each_does_alone(cell, monkeypatch, threads):
    monkeypatch.setattr(logistic, "_SCORED_ROWS", 64)
    fits = fit_subsets(cell, threads=1)
    together = PROBE.score(fits, cell[0], threads=threads)
    assert together.shape == (5, 300, 3)
    for fitted, logits in zip(fits, together, strict=True):
        np.testing.assert_allclose(logits, fitted.logits(cell[0]), rtol=1e-6, atol=1e-6)


def test_a_fit_on_all_rows_makes_no_copy_of_the_features(rng):
    features = rng.standard_normal((60_000, 64), dtype=np.float32)
    labels = rng.integers(0, 3, len(features))
    tracemalloc.start()
    fit_subsets((features, labels, [Subset(1.0, 0, np.arange(len(features)))]), threads=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < features.nbytes


def test_a_class_without_rows_has_probability_zero_and_changes_nothing_else(rng):
    features, labels = draw(rng, 40, 6, 3)
    without = fit(features, labels, n_classes=3)
    with_absent = fit(features, labels + (labels > 0), n_classes=5)  # classes 0, 2, 3
    logits = with_absent.logits(features)
    assert logits.shape == (40, 5)
    assert np.isneginf(logits[:, [1, 4]]).all()
    np.testing.assert_array_equal(logits[:, [0, 2, 3]], without.logits(features))
    np.testing.assert_array_equal(softmax(logits, axis=1)[:, [1, 4]], 0)


def test_two_classes_that_occur_among_five_leave_the_others_impossible(rng):
    features, labels = draw(rng, 40, 6, 2)
    logits = fit(features, np.where(labels, 3, 1), n_classes=5).logits(features)
    assert np.isneginf(logits[:, [0, 2, 4]]).all()
    np.testing.assert_array_equal(
        logits[:, [1, 3]], fit(features, labels, n_classes=2).logits(features)
    )


def test_a_label_with_one_value_is_not_fitted_and_changes_no_other(rng):
    features, targets = draw_multilabel(rng, 40, 6, 4)
    alone = fit(features, targets[:, [0, 2]], task="multilabel", n_classes=2)
    targets[:, 1], targets[:, 3] = 1.0, np.nan
    fitted = fit(features, targets, task="multilabel", n_classes=4)
    assert fitted.status == "converged"
    assert np.isnan(fitted.logits(features)[:, [1, 3]]).all()
    np.testing.assert_array_equal(fitted.coefficients[:, [0, 2]], alone.coefficients)


@pytest.mark.parametrize(
    ("task", "targets", "n_classes"),
    [
        ("multiclass", np.full(6, 2), 3),
        ("ordinal", np.zeros(6, dtype=int), 5),
        ("multilabel", np.array([[1.0, np.nan]] * 6), 2),
    ],
)
def test_training_rows_of_a_single_class_are_a_typed_failure(rng, task, targets, n_classes):
    fitted = fit(rng.standard_normal((6, 3)), targets, task=task, n_classes=n_classes)
    assert fitted.status == "single_class"
    assert "both values" in fitted.reason
    assert fitted.logits(np.ones((2, 3))).shape == (2, n_classes)


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e30])
def test_features_that_cannot_be_summed_are_a_typed_failure(rng, value):
    features, labels = draw(rng, 20, 5, 3)
    features[4, 2] = value
    fitted = fit(features, labels, n_classes=3)
    assert fitted.status == "failed"
    assert "not finite" in fitted.reason
    assert fitted.n_train == 20


@pytest.mark.parametrize("n", [20, 6])
def test_features_far_from_standardised_are_a_typed_failure(rng, n):
    features, labels = draw(rng, n, 5, 3)
    fitted = fit(np.hstack([features, features]) * 1e12, labels, n_classes=3, cap=100)
    assert fitted.status in ("not_converged", "failed")
    assert "above the tolerance" in fitted.reason or "standardised" in fitted.reason


@pytest.mark.parametrize(("n", "d", "cap"), [(60, 10, 3), (20, 60, 3), (20, 60, 12)])
def test_reaching_the_cap_is_recorded_and_the_fit_still_scores(rng, n, d, cap):
    features, labels = draw(rng, n, d, 4)
    fitted = fit(features, labels, n_classes=4, cap=cap)
    assert fitted.status == "not_converged"
    assert fitted.iterations == cap
    assert fitted.gradient_norm > TOLERANCE
    assert f"above the tolerance after {cap} iterations, the cap" in fitted.reason
    assert np.isfinite(fitted.logits(features)).all()


@pytest.mark.parametrize(("n", "d"), [(60, 10), (20, 60)])
def test_a_looser_tolerance_stops_earlier(rng, n, d):
    features, labels = draw(rng, n, d, 4)
    loose, tight = (fit(features, labels, n_classes=4, tolerance=t) for t in (1e-3, 1e-8))
    assert loose.status == tight.status == "converged"
    assert loose.iterations < tight.iterations
    assert tight.objective < loose.objective


def test_one_row_a_class_is_enough(rng):
    fitted = fit(rng.standard_normal((3, 50), dtype=np.float32), np.arange(3), n_classes=3)
    assert fitted.status == "converged"
    assert isinstance(fitted, LogisticFit)


@pytest.mark.parametrize(
    ("task", "shape"), [("multiclass", (9,)), ("multiclass", (10, 3)), ("multilabel", (10, 2))]
)
def test_shapes_that_do_not_belong_together_are_refused(rng, task, shape):
    with pytest.raises(ValueError, match="do not belong together: expected"):
        fit(rng.standard_normal((10, 4)), np.zeros(shape), task=task, n_classes=3)
