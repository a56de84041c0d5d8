"""The score on arrays: known values, invariances against a fixed reference, broken input."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from panel_oracle import WEIGHTS, slow_crs, slow_score

from crsbench.crs import (
    AXES,
    Anchors,
    Weights,
    aggregate,
    anchors,
    check_panel,
    combine,
    dominance,
    dominates,
    ideal_point,
    normalise,
    replicate_anchors,
    score,
    score_cohort,
)
from crsbench.errors import CrsBenchError

PARTS = ("crs", "dominance", "ideal_point", "worst_axis")


def random_panels(*shape, seed=0):
    return np.random.default_rng(seed).uniform(0.5, 1.0, (*shape, len(AXES)))


class TestKnownValues:
    def test_one_encoder_best_on_all_axes_has_one_and_one_worst_on_all_has_zero(self):
        scores = score_cohort(np.array([[0.9] * 4, [0.5] * 4, [0.7] * 4]), weights=WEIGHTS)
        np.testing.assert_array_equal(scores.crs[:2], [1.0, 0.0])
        np.testing.assert_array_equal(scores.dominance, [1.0, 0.0, 0.5])
        np.testing.assert_allclose(scores.ideal_point[2], 0.75)
        np.testing.assert_allclose(scores.worst_axis[2], 0.5)

    def test_published_profile_by_hand(self):
        """BioViL of Figure 2: two axes at the top, two at the bottom, dominating none."""
        panel = np.array([[0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0]])
        scores = score_cohort(panel, weights=WEIGHTS)
        np.testing.assert_allclose(scores.ideal_point, 0.5)
        np.testing.assert_allclose(scores.crs, 0.125)

    def test_dominance_needs_one_strictly_higher_axis(self):
        equal = np.full((2, 4), 0.5)
        assert not dominates(equal, equal).any()

    def test_dominance_needs_no_epsilon(self):
        above = np.array([[np.nextafter(0.5, 1), 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]])
        np.testing.assert_array_equal(dominates(above, above), [[False, True], [False, False]])

    def test_non_member_is_compared_with_all_members_and_a_member_with_the_others(self):
        panel = np.array([[0.2] * 4, [0.4] * 4, [0.8] * 4])
        found = dominance(np.array([[0.5] * 4, [0.8] * 4]), panel, own=np.array([-1, 2]))
        np.testing.assert_array_equal(found, [2 / 3, 1.0])

    def test_values_beyond_the_anchors_are_clipped(self):
        within = Anchors(np.zeros(4), np.ones(4))
        found = normalise(np.array([[-1.0, 0.25, 2.0, 1.0]]), within)
        np.testing.assert_array_equal(found, [[0.0, 0.25, 1.0, 1.0]])

    def test_aggregate_is_the_mean_of_the_observed_datasets(self):
        axes = np.array([[[1.0] * 4, [3.0] * 4], [[1.0] * 4, [np.nan] * 4], [[np.nan] * 4] * 2])
        observed = np.array([[True, True], [True, False], [False, False]])
        found = aggregate(axes, observed)
        np.testing.assert_array_equal(found[:, 0], [2.0, 1.0, np.nan])

    def test_undefined_value_in_an_observed_cell_spreads_to_the_aggregate(self):
        axes = np.array([[[1.0, np.nan, 1.0, 1.0], [3.0] * 4]])
        found = aggregate(axes, np.array([[True, True]]))
        np.testing.assert_array_equal(found, [[2.0, np.nan, 2.0, 2.0]])


class TestAgainstLoops:
    @pytest.mark.parametrize("seed", range(5))
    def test_cohort_agrees_with_a_slow_implementation(self, seed):
        panel = random_panels(9, seed=seed).round(2)
        slow = slow_crs(panel.tolist())
        np.testing.assert_allclose(
            score_cohort(panel, weights=WEIGHTS).crs, slow, rtol=0, atol=1e-12
        )

    def test_candidates_agree_with_a_slow_implementation_under_other_weights(self):
        panel, candidates = random_panels(7), random_panels(20, seed=1) * 1.1
        weights = Weights((0.2, 0.5, 0.3), (0.1, 0.2, 0.3, 0.4))
        within = anchors(panel)
        own = np.full(20, -1)
        found = score(candidates, panel, within=within, own=own, weights=weights).crs
        limits = list(zip(within.lower, within.upper, strict=True))
        slow = [
            slow_score(row, panel, limits, weights.components, weights.axes) for row in candidates
        ]
        np.testing.assert_allclose(found, slow, rtol=0, atol=1e-12)

    def test_replicates_have_the_same_bits_as_single_panels(self):
        panels = random_panels(3, 4, 6)
        together = score_cohort(panels, weights=WEIGHTS)
        for place in np.ndindex(3, 4):
            alone = score_cohort(panels[place], weights=WEIGHTS)
            for part in (*PARTS, "normalised"):
                np.testing.assert_array_equal(getattr(together, part)[place], getattr(alone, part))

    def test_weight_draws_broadcast_over_replicates(self):
        draws = np.random.default_rng(0).dirichlet(np.ones(4), 5)
        components = np.random.default_rng(1).dirichlet(np.ones(3), 5)
        given = score_cohort(random_panels(6), weights=WEIGHTS)
        ideal = ideal_point(given.normalised, draws[:, None])
        crs = combine(given.dominance, ideal, given.worst_axis, by=components[:, None])
        for draw, component, row in zip(draws, components, crs, strict=True):
            weights = Weights(tuple(component), tuple(draw))
            np.testing.assert_array_equal(score_cohort(random_panels(6), weights=weights).crs, row)


class TestInvariances:
    def test_adding_a_candidate_leaves_all_others_bit_identical(self):
        panel = random_panels(8)
        within, own = anchors(panel), np.arange(8)
        before = score(panel, panel, within=within, own=own, weights=WEIGHTS)
        for seed in range(20):
            more = np.concatenate([panel, random_panels(3, seed=seed) * 1.3])
            places = np.concatenate([own, np.full(3, -1)])
            after = score(more, panel, within=within, own=places, weights=WEIGHTS)
            for part in PARTS:
                np.testing.assert_array_equal(getattr(after, part)[:8], getattr(before, part))

    @pytest.mark.parametrize("axis", range(4))
    def test_crs_never_falls_when_an_axis_rises(self, axis):
        panel = random_panels(8).round(2)
        within = anchors(panel)
        rising = np.repeat(random_panels(1, seed=3), 200, axis=0)
        rising[:, axis] = np.linspace(0.4, 1.1, 200)
        for own in (np.full(200, -1), np.full(200, 2)):
            crs = score(rising, panel, within=within, own=own, weights=WEIGHTS).crs
            assert (np.diff(crs) >= 0).all()
            assert crs[-1] > crs[0]

    def test_permuting_encoders_permutes_scores(self):
        panel = random_panels(10)
        order = np.random.default_rng(1).permutation(10)
        permuted = score_cohort(panel[order], weights=WEIGHTS)
        for part in PARTS:
            np.testing.assert_array_equal(
                getattr(permuted, part), getattr(score_cohort(panel, weights=WEIGHTS), part)[order]
            )

    def test_increasing_affine_change_of_an_axis_changes_no_cohort_score(self):
        panel = random_panels(10)
        changed = panel * np.array([2.0, 4.0, 0.5, 8.0])
        np.testing.assert_array_equal(
            score_cohort(changed, weights=WEIGHTS).crs, score_cohort(panel, weights=WEIGHTS).crs
        )

    def test_scores_and_parts_lie_between_zero_and_one(self):
        scores = score_cohort(random_panels(500, 6), weights=WEIGHTS)
        for part in PARTS:
            assert getattr(scores, part).min() >= 0
            assert getattr(scores, part).max() <= 1


class TestUndefined:
    def test_zero_width_makes_the_whole_replicate_undefined_and_no_other(self):
        panels = random_panels(3, 5)
        panels[1, :, 2] = 0.7
        np.testing.assert_array_equal(replicate_anchors(panels).undefined, [False, True, False])
        crs = score_cohort(panels, weights=WEIGHTS).crs
        np.testing.assert_array_equal(np.isnan(crs).all(axis=1), [False, True, False])
        np.testing.assert_array_equal(np.isnan(crs).any(axis=1), [False, True, False])

    def test_nan_axis_makes_the_whole_replicate_undefined(self):
        panels = random_panels(2, 5)
        panels[0, 3, 1] = np.nan
        crs = score_cohort(panels, weights=WEIGHTS).crs
        assert np.isnan(crs[0]).all()
        assert np.isfinite(crs[1]).all()

    def test_panel_of_one_in_a_batch_is_undefined(self):
        assert np.isnan(score_cohort(random_panels(2, 1), weights=WEIGHTS).crs).all()


class TestErrors:
    @pytest.mark.parametrize("n_members", [0, 1])
    def test_panel_of_fewer_than_two(self, n_members):
        with pytest.raises(CrsBenchError, match=f"two encoders or more, not {n_members}"):
            check_panel(random_panels(n_members), ["a"] * n_members)

    def test_anchor_of_zero_width(self):
        panel = random_panels(3)
        panel[:, 3] = 0.25
        with pytest.raises(CrsBenchError, match=r"robustness have zero width: .* at 0\.25"):
            check_panel(panel, ["a", "b", "c"])

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_axis_that_is_not_finite(self, value):
        panel = random_panels(3)
        panel[1, 1] = value
        with pytest.raises(CrsBenchError, match=f"b: axis calibration is {value}"):
            check_panel(panel, ["a", "b", "c"])

    def test_duplicate_encoder(self):
        with pytest.raises(CrsBenchError, match=r"named twice in one panel: a$"):
            check_panel(random_panels(3), ["a", "b", "a"])

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            ({"components": (0.7, 0.4, -0.1)}, "component weights must be finite and not negative"),
            ({"axes": (np.nan, 0.5, 0.25, 0.25)}, "axis weights must be finite"),
            ({"axes": (0.3, 0.3, 0.3, 0.3)}, r"axis weights must sum to 1, not 1\.2"),
            ({"components": (0.5, 0.5)}, r"component weights: 3 expected \(dominance"),
        ],
    )
    def test_weights(self, weights, message):
        with pytest.raises(CrsBenchError, match=message):
            replace(WEIGHTS, **weights)


def test_published_scores_follow_from_the_published_axes(published_folder):
    axes = pl.read_csv(published_folder / "fig2_axes.csv")
    printed = pl.read_csv(published_folder / "table2.csv")["aggregate_crs"].to_numpy()
    panel = axes.select(AXES).to_numpy().copy()
    encoders = axes["encoder"].to_list()
    tied = score_cohort(panel, weights=WEIGHTS).crs
    panel[encoders.index("SigLIP"), AXES.index("label_efficiency")] += 1e-6
    np.testing.assert_allclose(
        score_cohort(panel, weights=WEIGHTS).crs, printed, rtol=0, atol=0.0015
    )
    np.testing.assert_allclose(tied[encoders.index("BiomedCLIP")], 0.467, atol=0.0005)


@pytest.fixture
def published_folder(request):
    return request.config.rootpath / "resources" / "paper"
