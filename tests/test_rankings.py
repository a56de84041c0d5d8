"""Rankings: SciPy as the oracle, ties, top k, what is undefined."""

import numpy as np
import pytest
from scipy import stats

from crsbench.rankings import (
    descending_order,
    kendall_tau_b,
    mid_ranks,
    spearman,
    top_k,
    top_k_overlap,
)


@pytest.fixture
def pairs():
    """Two rankings of 9 items with ties, 40 times."""
    random = np.random.default_rng(0)
    return random.integers(0, 6, (2, 40, 9)).astype(float)


def test_tau_b_agrees_with_scipy_with_ties(pairs):
    expected = [stats.kendalltau(a, b).statistic for a, b in zip(*pairs, strict=True)]
    np.testing.assert_allclose(kendall_tau_b(*pairs), expected, atol=1e-12)


def test_spearman_agrees_with_scipy_with_ties(pairs):
    expected = [stats.spearmanr(a, b).statistic for a, b in zip(*pairs, strict=True)]
    np.testing.assert_allclose(spearman(*pairs), expected, atol=1e-12)


def test_mid_ranks_agree_with_scipy_ranks_of_the_negated_values(pairs):
    np.testing.assert_array_equal(mid_ranks(pairs[0]), stats.rankdata(-pairs[0], axis=1))


def test_21_reversals_of_105_pairs_give_a_tau_of_0_600():
    first = np.arange(15.0)
    second = np.concatenate([first[:7][::-1], first[7:]])
    assert kendall_tau_b(first, second) == pytest.approx(0.6, abs=1e-12)


def test_a_value_changed_by_one_ulp_changes_the_order():
    values = np.array([0.5, np.nextafter(0.5, 1)])
    assert mid_ranks(values).tolist() == [2, 1]


def test_top_k_breaks_ties_by_the_order_of_the_items():
    values = np.array([0.3, 0.7, 0.3, 0.3])
    assert top_k(values, 2).tolist() == [True, True, False, False]
    assert descending_order(values).tolist() == [1, 0, 2, 3]


def test_the_overlap_is_the_shared_part_of_the_two_tops():
    first, second = np.array([5.0, 4, 3, 2, 1]), np.array([5.0, 4, 1, 2, 3])
    assert top_k_overlap(first, second, k=3) == pytest.approx(2 / 3)


@pytest.mark.parametrize("k", [4, 5])
def test_the_overlap_of_everyone_is_undefined(k):
    assert np.isnan(top_k_overlap(np.arange(4.0), np.arange(4.0), k=k))


@pytest.mark.parametrize("agreement", [kendall_tau_b, spearman])
def test_agreement_with_a_constant_a_nan_or_a_single_item_is_undefined(agreement):
    rising = np.arange(3.0)
    assert np.isnan(agreement(rising, np.ones(3)))
    assert np.isnan(agreement(rising, np.array([1, np.nan, 2])))
    assert np.isnan(agreement(rising[:1], rising[:1]))
    assert np.isnan(mid_ranks(np.array([1, np.nan, 2]))).all()


def test_agreement_is_the_same_for_any_increasing_change_of_scale(pairs):
    np.testing.assert_array_equal(kendall_tau_b(*pairs), kendall_tau_b(np.exp(pairs[0]), pairs[1]))
    np.testing.assert_array_equal(spearman(*pairs), spearman(pairs[0], 3 * pairs[1] - 7))
