"""Resampling: the exact distribution, draws against it, plain-loop oracles of every summary."""

import itertools
from collections import Counter

import numpy as np
import pytest

from crsbench.digests import generator
from crsbench.errors import CrsBenchError
from crsbench.resampling import (
    Replicates,
    average_over_units,
    basic_interval,
    differences,
    distinct_multisets,
    draw_multisets,
    enumerate_multisets,
    leading_tier,
    mean,
    percentile_interval,
    quantiles,
    rank_probabilities,
    top_k_probabilities,
    unresolved_from,
)


def once(statistic):
    """Replicates that occur once each."""
    statistic = np.asarray(statistic, float)
    return Replicates(statistic, np.ones(len(statistic), int))


@pytest.fixture
def replicates():
    """60 replicates of 4 items with many ties, each occurring 1 to 4 times."""
    random = np.random.default_rng(3)
    return Replicates(random.integers(0, 5, (60, 4)) / 4, random.integers(1, 5, 60))


def expanded(replicates):
    """Every replicate as often as it occurs, as lists."""
    return np.repeat(replicates.statistic, replicates.multiplicity, axis=0).tolist()


class TestMultisets:
    def test_five_units_have_126_multisets_and_3125_ordered_draws(self):
        counts, multiplicity = enumerate_multisets(5)
        assert counts.shape == (126, 5)
        assert multiplicity.sum() == 5**5
        assert (counts.sum(axis=1) == 5).all()

    @pytest.mark.parametrize("n_units", [1, 2, 3, 5])
    def test_multiplicities_count_the_ordered_draws(self, n_units):
        draws = itertools.product(range(n_units), repeat=n_units)
        expected = Counter(tuple(draw.count(u) for u in range(n_units)) for draw in draws)
        counts, multiplicity = enumerate_multisets(n_units)
        assert (
            dict(zip(map(tuple, counts.tolist()), multiplicity.tolist(), strict=True)) == expected
        )

    @pytest.mark.parametrize("n_units", [0, 11])
    def test_too_few_or_too_many_units_are_refused(self, n_units):
        with pytest.raises(CrsBenchError, match=f"{n_units} seeds; 1 to 10 can be enumerated"):
            enumerate_multisets(n_units)

    def test_draws_depend_on_the_generator_alone(self):
        first, again, other = (
            draw_multisets(5, n_replicates=50, generator=generator("seeds", name))
            for name in ("a", "a", "b")
        )
        np.testing.assert_array_equal(first, again)
        assert (first != other).any()

    def test_draws_have_the_exact_distribution(self):
        n = 20_000
        drawn = draw_multisets(5, n_replicates=n, generator=generator(0))
        counts, multiplicity = enumerate_multisets(5)
        found = Counter(map(tuple, drawn.tolist()))
        share = np.array([found[tuple(row)] for row in counts.tolist()]) / n
        expected = multiplicity / 5**5
        error = np.sqrt(expected * (1 - expected) / n)
        assert (np.abs(share - expected) < 4.5 * error).all()

    def test_distinct_multisets_restore_the_draws(self):
        counts = draw_multisets(3, n_replicates=40, generator=generator(0)).reshape(20, 2, 3)
        distinct, place = distinct_multisets(counts)
        assert len(distinct) <= 10
        np.testing.assert_array_equal(distinct[place], counts)


class TestAverages:
    def test_the_mean_is_that_of_the_repeated_values(self):
        values = np.random.default_rng(0).normal(size=(4, 3, 2))
        counts, _ = enumerate_multisets(4)
        found = average_over_units(values, counts)
        for row, value in zip(counts, found, strict=True):
            np.testing.assert_allclose(value, np.repeat(values, row, axis=0).mean(axis=0))

    def test_units_that_agree_give_their_value_to_the_last_bit(self):
        values = np.full((5, 7), 1 / 3)
        found = average_over_units(values, enumerate_multisets(5)[0])
        assert (found == 1 / 3).all()

    def test_a_nan_of_a_unit_that_was_not_drawn_still_counts(self):
        found = average_over_units(np.array([1.0, np.nan]), np.array([[2, 0]]))
        assert np.isnan(found).all()


class TestSummaries:
    def test_mean_and_quantiles_are_those_of_the_repeated_replicates(self, replicates):
        rows = np.array(expanded(replicates))
        np.testing.assert_allclose(mean(replicates), rows.mean(axis=0), atol=1e-12)
        levels = (0.0, 0.025, 0.3, 0.5, 0.975, 1.0)
        expected = np.quantile(rows, levels, axis=0, method="inverted_cdf")
        np.testing.assert_array_equal(quantiles(replicates, levels), expected)

    def test_the_interval_of_1_to_1000_is_the_25th_and_the_975th(self):
        values = np.random.default_rng(0).permutation(1000)[:, None] + 1.0
        assert [bound.item() for bound in percentile_interval(once(values))] == [25, 975]

    def test_the_basic_interval_is_reflected_about_the_point(self, replicates):
        point = np.array([0.5, 0.4, 0.3, 0.2])
        low, high = percentile_interval(replicates)
        basic = basic_interval((low, high), point)
        np.testing.assert_allclose(basic, (2 * point - high, 2 * point - low))

    def test_rank_probabilities_agree_with_a_loop_that_shares_ties(self, replicates):
        rows, n = expanded(replicates), 4
        expected = np.zeros((n, n))
        for row in rows:
            for item, value in enumerate(row):
                above = sum(other > value for other in row)
                equal = row.count(value)
                for rank in range(above, above + equal):
                    expected[item, rank] += 1 / equal / len(rows)
        found = rank_probabilities(replicates)
        np.testing.assert_allclose(found, expected, atol=1e-12)
        np.testing.assert_allclose(found.sum(axis=0), 1)
        np.testing.assert_allclose(found.sum(axis=1), 1)
        np.testing.assert_allclose(top_k_probabilities(replicates, 3), expected[:, :3].sum(axis=1))

    def test_differences_are_paired(self, replicates):
        first, second, paired = differences(replicates)
        assert list(zip(first.tolist(), second.tolist(), strict=True)) == list(
            itertools.combinations(range(4), 2)
        )
        for column, (i, j) in enumerate(zip(first, second, strict=True)):
            expected = replicates.statistic[:, i] - replicates.statistic[:, j]
            np.testing.assert_array_equal(paired.statistic[:, column], expected)

    def test_permuting_the_items_permutes_the_summaries(self, replicates):
        order = np.array([2, 0, 3, 1])
        permuted = Replicates(replicates.statistic[:, order], replicates.multiplicity)
        np.testing.assert_array_equal(mean(permuted), mean(replicates)[order])
        np.testing.assert_allclose(
            rank_probabilities(permuted), rank_probabilities(replicates)[order]
        )

    def test_undefined_replicates_are_left_out_and_counted(self, replicates):
        spoiled = Replicates(
            np.vstack([replicates.statistic, [[1.0, np.nan, 1, 1]]]),
            np.append(replicates.multiplicity, 7),
        )
        assert spoiled.n_undefined == 7
        assert spoiled.n_replicates == replicates.n_replicates + 7
        np.testing.assert_array_equal(mean(spoiled), mean(replicates))
        np.testing.assert_array_equal(quantiles(spoiled, [0.1]), quantiles(replicates, [0.1]))
        np.testing.assert_array_equal(rank_probabilities(spoiled), rank_probabilities(replicates))

    def test_without_a_defined_replicate_everything_is_undefined(self):
        nothing = once([[np.nan, 1.0], [np.nan, 2.0]])
        assert np.isnan(mean(nothing)).all()
        assert np.isnan(quantiles(nothing, [0.5])).all()
        assert np.isnan(rank_probabilities(nothing)).all()
        assert leading_tier(nothing) is None
        assert unresolved_from(nothing, 0).all()

    def test_arrays_that_do_not_match_are_refused(self):
        with pytest.raises(CrsBenchError, match=r"statistic \(3, 2\) and multiplicity \(2,\)"):
            Replicates(np.ones((3, 2)), np.ones(2, int))


class TestLeadingTier:
    def test_two_that_change_places_are_the_tier(self):
        tier = leading_tier(once([[3, 2, 1], [2, 3, 1]] * 10))
        assert tier.members.tolist() == [True, True, False]
        assert tier.share == 1

    def test_a_leader_with_probability_below_0_95_is_no_tier_of_one(self):
        rows = [[3, 2, 1]] * 94 + [[2, 3, 1]] * 6
        assert leading_tier(once(rows)).members.tolist() == [True, True, False]

    def test_a_leader_with_probability_0_95_is_a_tier_of_one(self):
        rows = [[3, 2, 1]] * 95 + [[2, 3, 1]] * 5
        tier = leading_tier(once(rows))
        assert tier.members.tolist() == [True, False, False]
        assert tier.share == pytest.approx(0.95)

    def test_a_set_that_changes_too_often_is_passed_over(self):
        rows = [[4, 3, 2, 1], [3, 2, 4, 1], [2, 4, 3, 1]] * 5
        assert leading_tier(once(rows)).members.tolist() == [True, True, True, False]

    def test_everyone_is_a_tier_when_no_smaller_set_is_stable(self):
        rows = [[2, 1], [1, 2]]
        assert leading_tier(once(rows)).members.all()
        assert leading_tier(once([[3, 2, 1], [1, 3, 2], [2, 1, 3]])).members.all()

    def test_unresolved_are_those_whose_difference_from_the_leader_may_be_zero(self):
        random = np.random.default_rng(0)
        noise = random.normal(0, 0.1, (500, 3))
        close = once(noise + np.array([1.0, 0.95, 0.2]))
        assert unresolved_from(close, 0).tolist() == [True, True, False]

    def test_a_constant_lead_is_resolved(self):
        assert unresolved_from(once([[2.0, 1.0]] * 5), 0).tolist() == [True, False]
