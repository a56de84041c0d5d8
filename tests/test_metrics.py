"""Metrics against known values, independent oracles, invariances and extremes."""

import math

import numpy as np
import pytest
from scipy.special import expit, logsumexp, softmax
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    cohen_kappa_score,
    log_loss,
    roc_auc_score,
    roc_curve,
)

from crsbench.metrics import (
    Undefined,
    adaptive_calibration_error,
    auroc,
    average_precision,
    binary_brier,
    binary_nll,
    binary_top_label,
    brier,
    expected_calibration_error,
    log_odds,
    macro,
    masked_mean,
    nll,
    one_hot,
    ordinal_mae,
    quadratic_weighted_kappa,
    rank,
    sensitivity_at_specificity,
    top_label,
)


@pytest.fixture
def rng():
    return np.random.default_rng(20240611)


def groups(*parts):
    """Confidence and outcome from (confidence, n right, n wrong)."""
    confidence = [c for c, right, wrong in parts for _ in range(right + wrong)]
    outcome = [x for _, right, wrong in parts for x in [1.0] * right + [0.0] * wrong]
    return np.array(confidence), np.array(outcome)


def ece_by_hand(confidence, outcome, n_bins):
    """Sort each sample into the first bin whose upper edge it does not exceed."""
    members = {}
    for c, o in zip(confidence, outcome, strict=True):
        if not math.isnan(o):
            index = next(b for b in range(1, n_bins + 1) if c <= b / n_bins)
            members.setdefault(index, []).append((c, o))
    n = sum(len(pairs) for pairs in members.values())
    gaps = [
        len(pairs)
        / n
        * abs(math.fsum(c for c, _ in pairs) - math.fsum(o for _, o in pairs))
        / len(pairs)
        for pairs in members.values()
    ]
    return math.fsum(gaps)


# --- Expected calibration error ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([(1.0, 2, 2), (0.97, 4, 0)], 0.235),
        ([(0.40, 5, 0), (0.39, 0, 5), (0.41, 3, 2)], 2 / 15),
        ([(0.60, 5, 5), (0.59, 10, 0)], 0.155),
    ],
)
def test_ece_has_the_known_values(parts, expected):
    confidence, outcome = groups(*parts)
    ece = expected_calibration_error(confidence, outcome, n_bins=15)
    assert ece == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("b", range(1, 16))
def test_a_confidence_on_an_edge_belongs_to_the_bin_below(b):
    below = np.nextafter((b - 1) / 15, 1)
    confidence, outcome = np.array([b / 15, below]), np.array([1.0, 0.0])
    in_one_bin = abs(b / 15 + below - 1) / 2
    ece = expected_calibration_error(confidence, outcome, n_bins=15)
    assert ece == pytest.approx(in_one_bin, abs=1e-12)


def test_confidence_zero_belongs_to_the_first_bin():
    confidence, outcome = np.array([0.0, 1 / 15]), np.array([1.0, 0.0])
    ece = expected_calibration_error(confidence, outcome, n_bins=15)
    assert ece == pytest.approx(abs(1 / 15 - 1) / 2)


def test_ece_of_fewer_samples_than_bins_has_the_known_value():
    confidence, outcome = np.array([0.95, 0.35, 0.05]), np.array([1.0, 1.0, 0.0])
    ece = expected_calibration_error(confidence, outcome, n_bins=15)
    assert ece == pytest.approx((0.05 + 0.65 + 0.05) / 3, abs=1e-12)  # a bin each, twelve empty


def test_ece_of_fewer_samples_than_bins_lets_two_share_a_bin():
    confidence, outcome = np.array([0.95, 0.35, 0.34]), np.array([0.0, 1.0, 0.0])
    ece = expected_calibration_error(confidence, outcome, n_bins=15)
    assert ece == pytest.approx((0.95 + (1 - 0.35 - 0.34)) / 3, abs=1e-12)


def test_ece_of_columns_with_masked_labels_is_that_of_each_by_hand(rng):
    confidence = np.round(rng.random((200, 6)), 2)
    outcome = (rng.random((200, 6)) < confidence).astype(float)
    outcome[rng.random((200, 6)) < 0.2] = np.nan
    ece = expected_calibration_error(confidence, outcome, n_bins=15)
    by_hand = [ece_by_hand(confidence[:, k], outcome[:, k], 15) for k in range(6)]
    np.testing.assert_allclose(ece, by_hand, atol=1e-13)


@pytest.mark.parametrize("seed", range(20))
def test_merging_bins_never_raises_ece(seed):
    rng = np.random.default_rng(seed)
    confidence = rng.random(60)
    outcome = (rng.random(60) < 0.5).astype(float)
    fine, middle, coarse = (
        expected_calibration_error(confidence, outcome, n_bins=n) for n in (15, 5, 1)
    )
    assert coarse <= middle + 1e-12
    assert middle <= fine + 1e-12
    assert 0 <= coarse <= fine <= 1


def test_ece_of_few_levels_with_the_right_frequencies_is_zero():
    parts = [(k / 5, 2 * k, 2 * (5 - k)) for k in range(6)]  # k of 5 neighbours
    confidence, outcome = groups(*parts)
    assert expected_calibration_error(confidence, outcome, n_bins=15) == pytest.approx(0, abs=1e-12)
    assert adaptive_calibration_error(confidence, outcome, n_groups=15) == pytest.approx(
        0, abs=1e-12
    )


def test_both_binary_confidences_differ_on_skewed_scores(rng):
    p = rng.beta(0.3, 3, size=3000)
    y = (rng.random(3000) < 0.5 * p).astype(float)
    of_positive = expected_calibration_error(p, y, n_bins=15)
    of_maximum = expected_calibration_error(*binary_top_label(p, y), n_bins=15)
    assert of_maximum < of_positive - 0.001
    assert of_positive == pytest.approx(ece_by_hand(p, y, 15))


def test_a_fully_masked_column_has_no_calibration_error():
    confidence, outcome = np.full((3, 2), 0.5), np.array([[1, np.nan]] * 3)
    for metric, bins in (
        (expected_calibration_error, "n_bins"),
        (adaptive_calibration_error, "n_groups"),
    ):
        values = metric(confidence, outcome, **{bins: 15})
        np.testing.assert_array_equal(values, [0.5, np.nan])


# --- Adaptive calibration error ---------------------------------------------------------------


def test_adaptive_ece_keeps_equal_confidences_together_in_any_row_order(rng):
    confidence = np.repeat([0.5, 0.9], 20)
    outcome = np.concatenate([np.repeat([1.0, 0.0], [5, 15]), np.repeat([1.0, 0.0], [11, 9])])
    expected = 0.5 * abs(0.5 - 5 / 20) + 0.5 * abs(0.9 - 11 / 20)
    for _ in range(5):
        order = rng.permutation(40)
        value = adaptive_calibration_error(confidence[order], outcome[order], n_groups=15)
        assert value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("n", [1, 2, 14, 15, 16])
def test_adaptive_ece_of_few_samples_is_the_mean_gap_and_never_nan(n):
    confidence = np.linspace(0.3, 0.7, n)
    outcome = np.arange(n) % 2.0
    value = adaptive_calibration_error(confidence, outcome, n_groups=16)
    assert value == pytest.approx(np.mean(np.abs(confidence - outcome)), abs=1e-12)


def test_adaptive_ece_groups_distinct_confidences_by_equal_counts(rng):
    confidence = rng.permutation(np.linspace(0.01, 0.99, 45))
    outcome = (rng.random(45) < 0.4).astype(float)
    order = np.argsort(confidence)
    excess = (confidence - outcome)[order].reshape(15, 3)
    expected = np.abs(excess.mean(axis=1)).mean()
    assert adaptive_calibration_error(confidence, outcome, n_groups=15) == pytest.approx(expected)


def test_adaptive_ece_ignores_masked_rows(rng):
    confidence = rng.random((40, 2))
    outcome = (rng.random((40, 2)) < 0.5).astype(float)
    outcome[::3, 1] = np.nan
    used = ~np.isnan(outcome[:, 1])
    both = adaptive_calibration_error(confidence, outcome, n_groups=15)
    alone = adaptive_calibration_error(confidence[used, 1], outcome[used, 1], n_groups=15)
    assert both[1] == pytest.approx(alone, abs=1e-14)


# --- Discrimination ---------------------------------------------------------------------------


@pytest.mark.parametrize("n_levels", [2, 6, 10_000])
def test_auroc_and_ap_agree_with_scikit_learn(rng, n_levels):
    scores = rng.integers(n_levels, size=(300, 5)) / n_levels
    labels = (rng.random((300, 5)) < 0.3).astype(float)
    labels[rng.random((300, 5)) < 0.1] = np.nan
    ranking = rank(scores, labels)
    for k in range(5):
        used = ~np.isnan(labels[:, k])
        truth, score = labels[used, k], scores[used, k]
        assert auroc(ranking)[k] == pytest.approx(roc_auc_score(truth, score), abs=1e-12)
        expected = average_precision_score(truth, score)
        assert average_precision(ranking)[k] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("specificity", [0.5, 0.55, 0.9, 0.95])
def test_sensitivity_is_the_best_point_of_the_roc_curve_at_that_specificity(rng, specificity):
    scores = rng.integers(40, size=(120, 4)) / 40
    labels = (rng.random((120, 4)) < 0.4).astype(float)
    values = sensitivity_at_specificity(rank(scores, labels), specificity=specificity)
    for k in range(4):
        fpr, tpr, _ = roc_curve(labels[:, k], scores[:, k], drop_intermediate=False)
        assert values[k] == tpr[fpr <= 1 - specificity + 1e-12].max()


def test_a_specificity_that_is_reached_exactly_counts():
    labels = np.array([0.0] * 10 + [1.0] * 2)
    scores = np.array([0.0] * 9 + [5.0] + [4.0, 1.0])  # 9 of 10 negatives below both positives
    ranking = rank(scores, labels)
    assert sensitivity_at_specificity(ranking, specificity=0.9) == 1.0
    assert sensitivity_at_specificity(ranking, specificity=0.95) == 0.0


def test_perfect_reversed_and_constant_scores():
    labels = np.array([1.0, 1, 0, 0, 0])
    perfect, constant = rank(labels, labels), rank(np.zeros(5), labels)
    assert auroc(perfect) == average_precision(perfect) == 1
    assert sensitivity_at_specificity(perfect, specificity=0.9) == 1
    assert auroc(rank(-labels, labels)) == 0
    assert auroc(constant) == 0.5
    assert average_precision(constant) == pytest.approx(2 / 5)
    assert sensitivity_at_specificity(constant, specificity=0.9) == 0


def test_infinite_scores_are_ranked():
    scores = np.array([np.inf, 1.0, -np.inf, -np.inf])
    assert auroc(rank(scores, np.array([1.0, 0, 1, 0]))) == pytest.approx((2 + 0.5) / 4)


def test_a_column_without_positives_or_negatives_is_undefined():
    labels = np.column_stack([np.zeros(4), np.ones(4), np.full(4, np.nan), [0, 1, 0, 1]])
    ranking = rank(np.arange(16.0).reshape(4, 4), labels)
    np.testing.assert_array_equal(np.isnan(auroc(ranking)), [True, True, True, False])
    sensitivity = sensitivity_at_specificity(ranking, specificity=0.9)
    np.testing.assert_array_equal(np.isnan(sensitivity), [True, True, True, False])
    np.testing.assert_array_equal(np.isnan(average_precision(ranking)), [True, False, True, False])


def test_auroc_ignores_monotone_maps_and_reflects_under_negation(rng):
    scores, labels = rng.standard_normal(100), (rng.random(100) < 0.4).astype(float)
    value = auroc(rank(scores, labels))
    assert auroc(rank(np.exp(scores), labels)) == value
    assert auroc(rank(-scores, labels)) == pytest.approx(1 - value, abs=1e-15)
    assert auroc(rank(scores, 1 - labels)) == pytest.approx(1 - value, abs=1e-15)


def test_log_odds_are_those_of_the_softmax_and_ignore_a_constant_a_sample(rng):
    logits = rng.standard_normal((50, 5))
    p = softmax(logits, axis=1)
    np.testing.assert_allclose(log_odds(logits), np.log(p / (1 - p)), atol=1e-12)
    moved = logits + rng.standard_normal((50, 1)) * 10
    np.testing.assert_allclose(log_odds(moved), log_odds(logits), atol=1e-12)


def test_log_odds_order_samples_whose_float32_probabilities_saturate(rng):
    labels = rng.integers(3, size=2000)
    logits = 12 * (one_hot(labels, 3) + rng.standard_normal((2000, 3)))
    saturated = softmax(logits.astype(np.float32), axis=1)
    truth = one_hot(labels, 3)
    assert (saturated == 1).sum() > 100
    exact = auroc(rank(log_odds(logits), truth))
    assert np.abs(exact - auroc(rank(saturated, truth))).max() > 1e-4
    by_hand = [-logsumexp(np.delete(logits - logits[:, [c]], c, axis=1), axis=1) for c in range(3)]
    expected = roc_auc_score(truth, np.column_stack(by_hand), average=None)
    np.testing.assert_allclose(exact, expected, atol=1e-6)


def test_log_odds_of_certain_and_impossible_classes_are_infinite():
    logits = np.array([[0.0, -np.inf, -np.inf], [1.0, 2.0, -np.inf]])
    expected = [[np.inf, -np.inf, -np.inf], [-1, 1, -np.inf]]
    np.testing.assert_allclose(log_odds(logits), expected)


def test_macro_averages_and_says_which_class_has_no_value():
    assert macro(np.array([0.5, 1.0]), names=["a", "b"]) == 0.75
    with pytest.raises(Undefined, match="no finite value for b"):
        macro(np.array([0.5, np.nan]), names=["a", "b"])
    with pytest.raises(Undefined, match="no class has both"):
        macro(np.array([]), names=[])


# --- Proper scores, accuracy ------------------------------------------------------------------


def test_brier_has_the_known_value():
    p, y = np.array([0.1, 0.8, 0.6, 0.3]), np.array([0, 1, 1, 0])
    assert binary_brier(p, y) == pytest.approx(0.075)
    assert brier(np.column_stack([1 - p, p]), y) == pytest.approx(0.075)
    assert brier_score_loss(y, p) == pytest.approx(0.075)


@pytest.mark.parametrize("n_classes", [2, 5, 14])
def test_brier_lies_between_zero_and_one_for_any_number_of_classes(n_classes):
    certain = np.eye(n_classes)
    right = np.arange(n_classes)
    assert brier(certain, right) == 0
    assert brier(certain, (right + 1) % n_classes) == 1


def test_nll_agrees_with_scikit_learn(rng):
    logits, labels = rng.standard_normal((100, 4)) * 3, rng.integers(4, size=100)
    expected = log_loss(labels, softmax(logits, axis=1), labels=range(4))
    assert nll(logits, labels) == pytest.approx(expected, abs=1e-12)


def test_binary_nll_agrees_with_scikit_learn_and_skips_masked(rng):
    logits = rng.standard_normal((100, 2)) * 3
    labels = (rng.random((100, 2)) < 0.5).astype(float)
    labels[::4, 0] = np.nan
    for k, value in enumerate(binary_nll(logits, labels)):
        used = ~np.isnan(labels[:, k])
        expected = log_loss(labels[used, k], expit(logits[used, k]))
        assert value == pytest.approx(expected, abs=1e-12)


def test_nll_stays_finite_where_probabilities_saturate():
    assert nll(np.array([[1000.0, 0.0]]), np.array([1])) == pytest.approx(1000)
    assert binary_nll(np.array([-1000.0]), np.array([1.0])) == pytest.approx(1000)


def test_nll_is_undefined_where_a_class_that_occurs_is_impossible():
    with pytest.raises(Undefined, match="probability zero"):
        nll(np.array([[0.0, -np.inf]]), np.array([1]))
    assert nll(np.array([[0.0, -np.inf]]), np.array([0])) == 0
    assert binary_nll(np.array([-np.inf]), np.array([1.0])) == np.inf


def test_top_label_takes_the_first_of_equal_classes():
    confidence, correct = top_label([[0.4, 0.4, 0.2], [0.1, 0.2, 0.7]], [0, 1])
    np.testing.assert_array_equal(confidence, [0.4, 0.7])
    np.testing.assert_array_equal(correct, [1, 0])


def test_binary_top_label_predicts_positive_above_one_half():
    confidence, correct = binary_top_label([0.5, 0.7, 0.2, 0.9], [0, 0, 0, np.nan])
    np.testing.assert_array_equal(confidence, [0.5, 0.7, 0.8, np.nan])
    np.testing.assert_array_equal(correct, [1, 0, 1, np.nan])


def test_masked_mean_is_nan_only_for_a_column_that_is_all_masked():
    values = np.array([[1.0, np.nan], [np.nan, np.nan], [2.0, np.nan]])
    np.testing.assert_array_equal(masked_mean(values), [1.5, np.nan])


# --- Ordinal grades ---------------------------------------------------------------------------


def test_qwk_counts_the_grades_that_do_not_occur():
    labels, predicted = np.array([0, 1, 4, 4]), np.array([0, 4, 4, 1])
    value = quadratic_weighted_kappa(predicted, labels)
    assert value == pytest.approx(0.294, abs=5e-4)
    squeezed = cohen_kappa_score(labels, predicted, weights="quadratic")
    assert squeezed == pytest.approx(0.636, abs=5e-4)


def test_qwk_agrees_with_scikit_learn_over_all_grades(rng):
    labels, predicted = rng.integers(4, size=80), rng.integers(1, 5, size=80)
    expected = cohen_kappa_score(labels, predicted, weights="quadratic", labels=range(5))
    assert quadratic_weighted_kappa(predicted, labels) == pytest.approx(expected, abs=1e-12)


def test_qwk_of_equal_constants_is_undefined_and_of_different_ones_zero():
    with pytest.raises(Undefined, match="the same constant"):
        quadratic_weighted_kappa(np.full(5, 2), np.full(5, 2))
    assert quadratic_weighted_kappa(np.full(5, 3), np.full(5, 1)) == 0


def test_ordinal_mae_is_in_grades():
    assert ordinal_mae(np.array([0, 4, 4, 1]), np.array([0, 1, 4, 4])) == 1.5


# --- Invariances and bad input ----------------------------------------------------------------


def all_binary_metrics(p, y):
    ranking = rank(p, y)
    return np.stack(
        [
            auroc(ranking),
            average_precision(ranking),
            sensitivity_at_specificity(ranking, specificity=0.9),
            expected_calibration_error(p, y, n_bins=15),
            adaptive_calibration_error(p, y, n_groups=15),
            binary_brier(p, y),
            binary_nll(np.log(p / (1 - p)), y),
            *(masked_mean(part) for part in binary_top_label(p, y)),
        ]
    )


def test_no_metric_depends_on_row_order_or_on_duplication(rng):
    p = np.round(rng.uniform(0.02, 0.98, size=(90, 3)), 2)
    y = (rng.random((90, 3)) < p).astype(float)
    y[rng.random((90, 3)) < 0.1] = np.nan
    values = all_binary_metrics(p, y)
    order = rng.permutation(90)
    np.testing.assert_allclose(all_binary_metrics(p[order], y[order]), values, atol=1e-13)
    twice = all_binary_metrics(np.tile(p, (2, 1)), np.tile(y, (2, 1)))
    np.testing.assert_allclose(twice, values, atol=1e-13)


def test_a_column_alone_has_the_value_that_it_has_among_others(rng):
    p = rng.uniform(0.02, 0.98, size=(40, 3))
    y = (rng.random((40, 3)) < p).astype(float)
    together = all_binary_metrics(p, y)
    for k in range(3):
        alone = all_binary_metrics(p[:, k], y[:, k])
        np.testing.assert_allclose(alone, together[:, k], atol=1e-14)


def test_no_columns_give_no_values():
    assert all_binary_metrics(np.empty((5, 0)), np.empty((5, 0))).shape == (9, 0)


@pytest.mark.parametrize(
    ("values", "labels", "message"),
    [
        ([0.1, 0.2], [1.0], r"values of shape \(2,\), but labels of shape \(1,\)"),
        ([], [], "no samples"),
        ([0.1, np.nan], [1.0, 0.0], "a value is NaN where its label is not"),
        ([0.1, 0.2], [1.0, 2.0], "binary labels must be 1, 0, or NaN"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(values, labels, message):
    for metric in (rank, binary_brier, binary_nll, binary_top_label):
        with pytest.raises(ValueError, match=message):
            metric(np.array(values), np.array(labels))


def test_confidences_outside_the_unit_interval_are_refused():
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\], not \[0.5, 1.5\]"):
        expected_calibration_error([0.5, 1.5], [1, 0], n_bins=15)
    with pytest.raises(ValueError, match="must lie in"):
        adaptive_calibration_error([-0.5, 0.5], [1, 0], n_groups=15)


def test_class_indices_outside_the_classes_are_refused():
    with pytest.raises(ValueError, match="must lie in 0…2"):
        one_hot(np.array([0, 3]), 3)
    with pytest.raises(ValueError, match="probabilities"):
        top_label(np.ones((2, 3)) / 3, np.array([0, 1, 2]))
