"""Stability of the criterion: plain-loop oracles, known values, small panels, broken input."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl
import pytest
from panel_oracle import WEIGHTS, slow_crs
from scipy import stats

from crsbench.crs import AXES, COMPONENTS
from crsbench.digests import generator
from crsbench.errors import CrsBenchError
from crsbench.validity import (
    INSERTIONS,
    PANELS,
    WEIGHT_DRAWS,
    insertions,
    panels,
    summarise_agreement,
    weight_draws,
)

NAMES = tuple("abcdefgh")


@pytest.fixture
def axes():
    """Raw axes of 8 encoders."""
    return np.random.default_rng(5).uniform(0.5, 1.0, (8, 4))


def top(scores, k=3):
    return set(sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k])


class TestPanels:
    @pytest.fixture
    def table(self, axes):
        return panels(
            axes, NAMES, generator=generator(0), sizes=(6, 5), n_draws=20, weights=WEIGHTS
        )

    def test_every_panel_agrees_with_plain_loops(self, axes, table):
        whole = slow_crs(axes.tolist())
        for row in table.iter_rows(named=True):
            out = row["left_out"].split("; ")
            kept = [place for place, name in enumerate(NAMES) if name not in out]
            before = [whole[place] for place in kept]
            after = slow_crs(axes[kept].tolist())
            assert row["tau_b"] == pytest.approx(stats.kendalltau(before, after).statistic)
            assert row["top3_overlap"] == pytest.approx(len(top(before) & top(after)) / 3)

    def test_the_panels_are_those_of_the_protocol(self, table):
        counts = dict(table.group_by("kind", "size").len().select(
            pl.concat_str("kind", pl.col("size").cast(pl.String), separator=" "), "len"
        ).iter_rows())  # fmt: skip
        assert counts == {
            "leave_one_out 7": 8,
            "drawn 6": 20,
            "enumerated 6": 28,
            "drawn 5": 20,
            "enumerated 5": 56,
        }
        assert table.filter(kind="leave_one_out")["left_out"].to_list() == list(reversed(NAMES))
        enumerated = table.filter(kind="enumerated", size=6)["left_out"].to_list()
        assert set(enumerated) == {"; ".join(pair) for pair in itertools.combinations(NAMES, 2)}
        assert table.schema == PANELS

    def test_normalised_axes_give_the_same_as_raw_ones(self, axes, table):
        scaled = (axes - axes.min(axis=0)) / (axes.max(axis=0) - axes.min(axis=0))
        again = panels(
            scaled, NAMES, generator=generator(0), sizes=(6, 5), n_draws=20, weights=WEIGHTS
        )
        assert again.equals(table)

    def test_drawn_panels_depend_on_the_generator(self, axes, table):
        other = panels(
            axes, NAMES, generator=generator(1), sizes=(6, 5), n_draws=20, weights=WEIGHTS
        )
        same_kind = [t.filter(kind="drawn")["left_out"].to_list() for t in (table, other)]
        assert same_kind[0] != same_kind[1]

    def test_on_a_small_panel_what_is_undefined_is_null_with_a_reason(self, axes):
        table = panels(
            axes[:4], NAMES[:4], generator=generator(0), sizes=(12, 10), n_draws=5, weights=WEIGHTS
        )
        left_one_out = table.filter(kind="leave_one_out")
        assert left_one_out["tau_b"].is_not_null().all()
        assert left_one_out["top3_overlap"].is_null().all()
        assert set(left_one_out["reason"]) == {"top 3 of 3 members is everyone"}
        drawn = table.filter(pl.col("kind") == "drawn")
        assert drawn["size"].to_list() == [12, 10]
        assert drawn["reason"][0] == (
            "panels of 12 need more than 12 encoders (at least 2); there are 4"
        )

    def test_a_panel_of_two_has_no_smaller_one(self, axes):
        table = panels(
            axes[:2], NAMES[:2], generator=generator(0), sizes=(), n_draws=5, weights=WEIGHTS
        )
        assert table["tau_b"].is_null().all()
        assert set(table["reason"]) == {"an anchor of zero width"}

    def test_too_many_panels_are_drawn_and_not_enumerated(self):
        many = np.random.default_rng(0).uniform(size=(24, 4))
        names = [str(place) for place in range(24)]
        table = panels(many, names, generator=generator(0), sizes=(12,), n_draws=5, weights=WEIGHTS)
        row = table.filter(kind="enumerated").row(0, named=True)
        assert row["reason"] == "2704156 panels, more than the 20000 that are enumerated"
        assert len(table.filter(kind="drawn")) == 5

    def test_a_summary_has_mean_spread_and_minimum(self, table):
        summary = summarise_agreement(table, by=["kind", "size"])
        part = table.filter(kind="enumerated", size=5)["tau_b"].to_numpy()
        row = summary.row(by_predicate=(pl.col("kind") == "enumerated") & (pl.col("size") == 5),
                          named=True)  # fmt: skip
        assert row["n"] == 56
        found = [row["tau_b_mean"], row["tau_b_sd"], row["tau_b_min"]]
        np.testing.assert_allclose(found, [part.mean(), part.std(ddof=1), part.min()])


@pytest.mark.parametrize(
    "analysis",
    [
        partial(panels, sizes=(6, 5), n_draws=20),
        partial(insertions, n_trials=30),
        partial(weight_draws, n_draws=20),
    ],
    ids=["panels", "insertions", "weight_draws"],
)
class TestPanelsWithoutCrs:
    @pytest.mark.parametrize(
        ("names", "message"),
        [
            ((*NAMES[:-1], "a"), "encoder named twice in one panel: a"),
            (NAMES, "a: axis label_efficiency is nan"),
        ],
    )
    def test_broken_input_is_refused(self, axes, analysis, names, message):
        if names == NAMES:
            axes[0, 2] = np.nan
        with pytest.raises(CrsBenchError, match=message):
            analysis(axes, names, generator=generator(0), weights=WEIGHTS)

    @pytest.mark.parametrize("n", [0, 1])
    def test_a_panel_of_one_or_none_is_one_row_with_the_reason(self, axes, analysis, n):
        table = analysis(axes[:n], NAMES[:n], generator=generator(0), weights=WEIGHTS)
        assert table["reason"].to_list() == [f"a panel needs two encoders or more, not {n}"]
        assert table["tau_b" if "tau_b" in table.columns else "cumulative"].item() is None

    def test_an_axis_of_zero_width_is_one_row_with_the_reason(self, axes, analysis):
        axes[:, 1] = 0.25
        table = analysis(axes, NAMES, generator=generator(0), weights=WEIGHTS)
        assert table["reason"].to_list() == [
            "anchors of calibration have zero width: all members are at 0.25"
        ]


class TestInsertions:
    def test_every_displacement_agrees_with_plain_loops(self, axes):
        table = insertions(axes, NAMES, generator=generator(0), n_trials=6, weights=WEIGHTS)
        again = generator(0)
        for trial in range(6):
            order = again.permutation(8).tolist()
            rows = table.filter(trial=trial)
            assert rows["inserted"].to_list() == [NAMES[place] for place in order[5:]]
            published = slow_crs(axes[order[:5]].tolist())
            previous = published
            for size, row in zip((6, 7, 8), rows.iter_rows(named=True), strict=True):
                now = slow_crs(axes[order[:size]].tolist())
                pairs = {"cumulative": published, "single": previous}
                for name, before in pairs.items():
                    largest = max(abs(a - b) for a, b in zip(now[:-1], before, strict=True))
                    assert row[name] == pytest.approx(largest, abs=1e-12)
                published = [*published, now[-1]]
                previous = now

    def test_a_fixed_reference_displaces_nobody_at_all(self, axes):
        table = insertions(axes, NAMES, generator=generator(0), n_trials=30, weights=WEIGHTS)
        assert (table["fixed_reference"] == 0).all()
        assert len(table) == 90
        assert table.schema == INSERTIONS

    def test_the_first_insertion_displaces_the_same_either_way(self, axes):
        first = insertions(
            axes, NAMES, generator=generator(0), n_trials=30, weights=WEIGHTS
        ).filter(step=1)
        assert first["cumulative"].equals(first["single"].alias("cumulative"))
        assert set(first["n_existing"]) == {5}

    def test_too_small_a_panel_says_so(self, axes):
        table = insertions(
            axes[:4], NAMES[:4], generator=generator(0), n_trials=30, weights=WEIGHTS
        )
        assert table.schema == INSERTIONS
        assert table["reason"].to_list() == ["3 insertions need 5 encoders; there are 4"]
        assert table["cumulative"].null_count() == 1

    def test_an_initial_panel_of_zero_width_says_so(self, axes):
        axes[1:, 0] = 0.7
        table = insertions(axes, NAMES, generator=generator(0), n_trials=30, weights=WEIGHTS)
        undefined = table.filter(pl.col("cumulative").is_null())
        assert set(undefined["reason"]) == {"an anchor of zero width"}
        assert 0 < len(undefined) < len(table)


class TestWeightDraws:
    @pytest.fixture
    def table(self, axes):
        return weight_draws(axes, NAMES, generator=generator(0), n_draws=25, weights=WEIGHTS)

    def test_every_draw_agrees_with_plain_loops(self, axes, table):
        given = slow_crs(axes.tolist())
        for row in table.iter_rows(named=True):
            components = [row[name] for name in COMPONENTS]
            weights = [row[name] for name in AXES]
            drawn = slow_crs(axes.tolist(), components, weights)
            assert row["tau_b"] == pytest.approx(stats.kendalltau(given, drawn).statistic)
            assert row["top3_overlap"] == pytest.approx(len(top(given) & top(drawn)) / 3)

    def test_one_family_of_weights_is_drawn_at_a_time_and_sums_to_one(self, table):
        assert table.schema == WEIGHT_DRAWS
        assert table["family"].value_counts().sort("family").rows() == [
            ("alternative", 1),
            ("axes", 25),
            ("components", 25),
        ]
        np.testing.assert_allclose(table.select(pl.sum_horizontal(AXES)).to_numpy(), 1)
        np.testing.assert_allclose(table.select(pl.sum_horizontal(COMPONENTS)).to_numpy(), 1)
        by_axis = table.filter(family="axes")
        assert (by_axis["dominance"] == 0.6).all()
        assert by_axis["discrimination"].n_unique() == 25

    def test_factors_stay_within_their_bounds_before_they_are_renormalised(self, table):
        drawn = table.filter(family="components").select(COMPONENTS).to_numpy()
        factors = drawn / [0.60, 0.25, 0.15]
        assert (factors.max(axis=1) / factors.min(axis=1) <= 3).all()

    def test_other_base_weights_are_perturbed_too(self, axes):
        base = replace(WEIGHTS, axes=(0.7, 0.1, 0.1, 0.1))
        table = weight_draws(axes, NAMES, generator=generator(0), n_draws=50, weights=base)
        assert table.filter(family="axes")["discrimination"].mean() > 0.5

    def test_without_alternatives_there_are_none(self, axes):
        table = weight_draws(
            axes, NAMES, generator=generator(0), n_draws=2, alternatives=(), weights=WEIGHTS
        )
        assert len(table) == 4

    def test_alternative_weights_must_sum_to_one(self, axes):
        with pytest.raises(CrsBenchError, match="axis weights must sum to 1"):
            weight_draws(
                axes,
                NAMES,
                generator=generator(0),
                n_draws=2,
                alternatives=((0.3, 0.3, 0.3, 0.3),),
                weights=WEIGHTS,
            )
