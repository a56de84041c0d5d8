"""Weighted metrics: repeating the cases as often as they weigh is the oracle."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from crsbench.digests import generator
from crsbench.errors import CrsBenchError
from crsbench.metrics import expected_calibration_error
from crsbench.weighted_metrics import (
    GroupDraws,
    draw_groups,
    outcomes_present,
    weighted_auroc,
    weighted_ece,
)


def all_once(n_groups):
    return GroupDraws((np.ones((n_groups, 1), np.float32),))


def repeated(values, groups, counts):
    return np.repeat(values, counts[groups].astype(int))


@pytest.fixture
def cases():
    """90 cases in 40 groups with ties, 8 of them masked; 25 replicates in blocks of 7."""
    random = np.random.default_rng(0)
    groups = random.integers(0, 40, 90)
    scores = random.integers(0, 12, 90) / 4
    labels = (random.uniform(size=90) < 0.3).astype(float)
    labels[::11] = np.nan
    return scores, labels, groups, draw_groups(40, n_replicates=25, generator=generator(0), block=7)


def each_replicate(draws):
    return np.concatenate(draws.blocks, axis=1).T


class TestDraws:
    def test_every_replicate_draws_as_many_groups_as_there_are(self, cases):
        draws = cases[3]
        assert [block.shape for block in draws.blocks] == [(40, 7)] * 3 + [(40, 4)]
        assert (each_replicate(draws).sum(axis=1) == 40).all()
        assert (draws.n_groups, draws.n_replicates) == (40, 25)

    def test_the_size_of_the_blocks_changes_no_draw(self, cases):
        whole = draw_groups(40, n_replicates=25, generator=generator(0))
        np.testing.assert_array_equal(each_replicate(whole), each_replicate(cases[3]))

    def test_the_draws_depend_on_the_generator(self, cases):
        other = draw_groups(40, n_replicates=25, generator=generator(1))
        assert (each_replicate(other) != each_replicate(cases[3])).any()

    @pytest.mark.parametrize(("n_groups", "n_replicates"), [(0, 5), (5, 0)])
    def test_nothing_to_draw_is_refused(self, n_groups, n_replicates):
        with pytest.raises(CrsBenchError, match=f"cannot draw {n_replicates} replicates"):
            draw_groups(n_groups, n_replicates=n_replicates, generator=generator(0))


class TestAuroc:
    @pytest.mark.parametrize("flip", [False, True])
    @pytest.mark.parametrize("tied", [False, True])
    def test_it_is_scikit_learns_on_the_repeated_cases(self, cases, tied, flip):
        scores, labels, groups, draws = cases
        if not tied:
            scores = scores + np.random.default_rng(1).normal(0, 1, 90)
        labels = 1 - labels if flip else labels
        found = weighted_auroc(scores, labels, groups=groups, draws=draws)
        kept = ~np.isnan(labels)
        for value, counts in zip(found, each_replicate(draws), strict=True):
            y, x = (repeated(v[kept], groups[kept], counts) for v in (labels, scores))
            assert value == pytest.approx(roc_auc_score(y, x), abs=1e-12)

    def test_it_is_the_plain_double_loop_with_ties_one_half(self, cases):
        scores, labels, groups, draws = cases
        found = weighted_auroc(scores, labels, groups=groups, draws=draws)
        weights = each_replicate(draws)[3][groups]
        area = pairs = 0.0
        for i in np.flatnonzero(labels == 1):
            for j in np.flatnonzero(labels == 0):
                area += (
                    weights[i]
                    * weights[j]
                    * ((scores[i] > scores[j]) + (scores[i] == scores[j]) / 2)
                )
                pairs += weights[i] * weights[j]
        assert found[3] == pytest.approx(area / pairs, abs=1e-15)

    def test_perfect_reversed_and_constant_scores_are_1_0_and_one_half(self, cases):
        _, labels, groups, draws = cases
        known = np.nan_to_num(labels)
        for scores, value in ((known, 1.0), (-known, 0.0), (0 * known, 0.5)):
            found = weighted_auroc(scores, labels, groups=groups, draws=draws)
            assert (found == value).all()

    def test_it_is_unchanged_by_permuting_cases_and_by_increasing_maps(self, cases):
        scores, labels, groups, draws = cases
        expected = weighted_auroc(scores, labels, groups=groups, draws=draws)
        order = np.random.default_rng(0).permutation(90)
        permuted = weighted_auroc(scores[order], labels[order], groups=groups[order], draws=draws)
        np.testing.assert_array_equal(permuted, expected)
        mapped = weighted_auroc(np.exp(scores), labels, groups=groups, draws=draws)
        np.testing.assert_array_equal(mapped, expected)

    def test_infinite_scores_are_ranked(self):
        scores = np.array([-np.inf, 0, np.inf, np.inf])
        found = weighted_auroc(
            scores, np.array([0.0, 1, 0, 1]), groups=np.arange(4), draws=all_once(4)
        )
        assert found.item() == (1 + 0 + 1 + 0.5) / 4

    def test_a_replicate_without_one_outcome_is_undefined(self):
        draws = GroupDraws((np.array([[1, 0, 2], [1, 2, 0]], np.float32),))
        arguments = {"groups": np.array([0, 1]), "draws": draws}
        found = weighted_auroc(np.array([0.2, 0.9]), np.array([0.0, 1.0]), **arguments)
        np.testing.assert_array_equal(found, [1, np.nan, np.nan])
        for labels in ([1.0, 1.0], [0.0, 0.0], [np.nan, 1.0]):
            assert np.isnan(weighted_auroc(np.ones(2), np.array(labels), **arguments)).all()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"labels": np.ones(3)}, r"labels \(3,\), groups \(4,\): expected \(N,\)"),
            ({"groups": np.array([0, 1, 2, 9])}, "groups 0 to 9: only 4 drawn"),
            ({"scores": np.array([np.nan, 1, 2, 3])}, "a score is NaN where its label is not"),
        ],
    )
    def test_broken_input_is_refused(self, change, message):
        given = {
            "scores": np.arange(4.0),
            "labels": np.array([0.0, 1, 0, 1]),
            "groups": np.arange(4),
            "draws": all_once(4),
        } | change
        with pytest.raises(CrsBenchError, match=message):
            weighted_auroc(given.pop("scores"), given.pop("labels"), **given)

    def test_weights_beyond_exact_sums_are_refused(self):
        draws = GroupDraws((np.full((2, 1), 2.0**23, np.float32),))
        with pytest.raises(CrsBenchError, match="more than 8,388,608 cases of one outcome"):
            weighted_auroc(
                np.array([1.0, 2.0]), np.array([0.0, 1.0]), groups=np.arange(2), draws=draws
            )


class TestEce:
    def test_it_is_that_of_the_repeated_cases(self, cases):
        scores, labels, groups, draws = cases
        confidence = scores / 3
        found = weighted_ece(confidence, labels, groups=groups, draws=draws, n_bins=15)
        for value, counts in zip(found, each_replicate(draws), strict=True):
            c, o = (repeated(v, groups, counts) for v in (confidence, labels))
            assert value == pytest.approx(expected_calibration_error(c, o, n_bins=15), abs=1e-12)

    def test_it_is_a_plain_loop_over_bins(self, cases):
        scores, labels, groups, draws = cases
        kept = ~np.isnan(labels)
        confidence, outcome = scores[kept] / 3, labels[kept]
        weights = each_replicate(draws)[0][groups[kept]].astype(float)
        expected = 0.0
        for b in range(15):
            inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
            inside |= (confidence == 0) & (b == 0)
            total = weights[inside].sum()
            if total:
                gap = (weights * (confidence - outcome))[inside].sum() / total
                expected += total / weights.sum() * abs(gap)
        found = weighted_ece(scores / 3, labels, groups=groups, draws=draws, n_bins=15)
        assert found[0] == pytest.approx(expected, abs=1e-12)

    @pytest.mark.parametrize(
        ("confidence", "outcome", "ece"),
        [
            ([1.0] * 4 + [0.97] * 4, [1, 1, 0, 0, 1, 1, 1, 1], 0.235),
            ([0.40] * 5 + [0.39] * 5 + [0.41] * 5, [1] * 5 + [0] * 5 + [1, 1, 1, 0, 0], 0.13333),
            ([0.60] * 10 + [0.59] * 10, [1] * 5 + [0] * 5 + [1] * 10, 0.155),
        ],
    )
    def test_known_values(self, confidence, outcome, ece):
        confidence, outcome = np.array(confidence), np.array(outcome, float)
        groups = np.arange(len(outcome))
        found = weighted_ece(
            confidence, outcome, groups=groups, draws=all_once(len(groups)), n_bins=15
        )
        assert found.item() == pytest.approx(ece, abs=1e-5)

    def test_drawing_every_group_twice_changes_nothing(self, cases):
        scores, labels, groups, _ = cases
        arguments = {"groups": groups, "n_bins": 15}
        twice = GroupDraws((np.full((40, 1), 2, np.float32),))
        np.testing.assert_allclose(
            weighted_ece(scores / 3, labels, draws=twice, **arguments),
            weighted_ece(scores / 3, labels, draws=all_once(40), **arguments),
        )

    def test_a_replicate_without_cases_is_undefined(self):
        draws = GroupDraws((np.array([[0, 1], [2, 1]], np.float32),))
        found = weighted_ece(
            np.array([0.5]), np.array([1.0]), groups=np.array([0]), draws=draws, n_bins=15
        )
        np.testing.assert_array_equal(found, [np.nan, 0.5])


def test_a_class_is_present_when_both_outcomes_were_drawn(cases):
    _, labels, groups, draws = cases
    rare = np.zeros(90)
    rare[:2] = 1
    columns = np.stack([labels, rare, np.zeros(90)], axis=1)
    found = outcomes_present(columns, groups=groups, draws=draws)
    for row, counts in zip(found, each_replicate(draws), strict=True):
        weights = counts[groups]
        expected = [all((weights[c == v] > 0).any() for v in (0, 1)) for c in columns.T]
        assert row.tolist() == expected
    assert found[:, 0].all()
    assert 0 < found[:, 1].sum() < 25
    assert not found[:, 2].any()
