"""Seed bootstrap of CRS: plain loops to 1e-12, the exact distribution against draws, tables."""

import numpy as np
import polars as pl
import pytest
from panel_oracle import DATASETS, ENCODERS, WEIGHTS, run_records, slow_aggregate, slow_crs

from crsbench.digests import generator
from crsbench.records import RUN_RECORD
from crsbench.resampling import draw_multisets, enumerate_multisets, mean, quantiles
from crsbench.score_bootstrap import (
    AXIS_INTERVALS,
    DIFFERENCES,
    INTERVALS,
    RANKS,
    TIERS,
    axis_table,
    difference_table,
    interval_table,
    rank_table,
    tier_table,
)
from crsbench.seed_bootstrap import bootstrap_paired, bootstrap_per_dataset, enumerate_paired
from crsbench.seed_records import collect_seed_records

TABLES = {
    interval_table: INTERVALS,
    rank_table: RANKS,
    difference_table: DIFFERENCES,
    tier_table: TIERS,
    axis_table: AXIS_INTERVALS,
}


@pytest.fixture(scope="module")
def table():
    return run_records()


@pytest.fixture(scope="module")
def records(table):
    return collect(table)


@pytest.fixture(scope="module")
def exact(records):
    return enumerate_paired(records, weights=WEIGHTS)


def collect(table):
    return collect_seed_records(table, probe="logistic", encoders=ENCODERS, datasets=DATASETS)


def drawn_seeds(counts):
    return np.repeat(np.arange(5), counts).tolist()


class TestReplicates:
    def test_exact_replicates_agree_with_plain_loops(self, table, exact):
        point = slow_aggregate(table, dict.fromkeys(DATASETS, drawn_seeds([1] * 5)))
        limits = [(min(column), max(column)) for column in zip(*point, strict=True)]
        np.testing.assert_allclose(exact.point, slow_crs(point), atol=1e-12)
        counts, multiplicity = enumerate_multisets(5)
        np.testing.assert_array_equal(exact.recomputed.multiplicity, multiplicity)
        for place in (0, 17, 60, 125):
            axes = slow_aggregate(table, dict.fromkeys(DATASETS, drawn_seeds(counts[place])))
            expected = slow_crs(axes), slow_crs(axes, limits=limits)
            found = exact.recomputed.statistic[place], exact.fixed.statistic[place]
            np.testing.assert_allclose(found, expected, atol=1e-12)

    def test_seeds_drawn_per_data_set_agree_with_plain_loops(self, table, records):
        found = bootstrap_per_dataset(
            records, generator=generator(0), n_replicates=4, weights=WEIGHTS
        )
        counts = draw_multisets(5, n_replicates=8, generator=generator(0)).reshape(4, 2, 5)
        for place, row in enumerate(counts):
            by_dataset = dict(zip(DATASETS, map(drawn_seeds, row), strict=True))
            expected = slow_crs(slow_aggregate(table, by_dataset))
            np.testing.assert_allclose(found.recomputed.statistic[place], expected, atol=1e-12)

    def test_10_000_draws_agree_with_the_exact_distribution(self, records, exact):
        n = 10_000
        drawn = bootstrap_paired(
            records, generator=generator("draws"), n_replicates=n, weights=WEIGHTS
        )
        assert drawn.recomputed.n_replicates == n
        values, weights = exact.recomputed.statistic, exact.recomputed.multiplicity / 5**5
        centre = weights @ values
        error = np.sqrt(weights @ (values - centre) ** 2 / n)
        assert (np.abs(mean(drawn.recomputed) - centre) < 4 * error).all()
        for level in (0.1, 0.5, 0.9):
            reached = values <= quantiles(drawn.recomputed, [level])[0]
            below = np.array([weights[column].sum() for column in reached.T])
            assert (below > level - 4 * np.sqrt(level * (1 - level) / n)).all()

    def test_draws_per_data_set_have_the_same_centre_but_are_not_paired(self, records, exact):
        found = bootstrap_per_dataset(
            records, generator=generator(1), n_replicates=3_000, weights=WEIGHTS
        )
        assert len(found.recomputed.statistic) == 3_000
        spread = found.recomputed.statistic.std(axis=0) / np.sqrt(3_000)
        centre = mean(exact.recomputed)
        assert (np.abs(mean(found.recomputed) - centre) < 0.02 + 4 * spread).all()

    def test_permuting_the_encoders_permutes_everything(self, table, exact):
        order = [3, 1, 4, 0, 2]
        names = [ENCODERS[place] for place in order]
        permuted = enumerate_paired(
            collect_seed_records(table, probe="logistic", encoders=names, datasets=DATASETS),
            weights=WEIGHTS,
        )
        np.testing.assert_array_equal(permuted.point, exact.point[order])
        np.testing.assert_array_equal(
            permuted.recomputed.statistic, exact.recomputed.statistic[:, order]
        )

    def test_seeds_that_all_agree_leave_intervals_of_zero_width(self, table):
        first = table.filter(seed=0)
        same = pl.concat([first.with_columns(seed=pl.lit(s, pl.Int64)) for s in range(5)])
        scores = bootstrap_paired(
            collect(same), generator=generator(0), n_replicates=200, weights=WEIGHTS
        )
        found = interval_table(scores)
        assert found["percentile_low"].equals(found["point"].alias("percentile_low"))
        assert (found["bias"].abs() < 1e-15).all()

    def test_a_zero_width_replicate_is_undefined_and_counted(self, table):
        """With seed 0 alone all ECEs agree: that one replicate of 3,125 has no anchors."""
        spoiled = table.with_columns(
            pl.when(pl.col("seed") == 0).then(0.1).otherwise("ece").alias("ece")
        )
        scores = enumerate_paired(collect(spoiled), weights=WEIGHTS)
        assert scores.recomputed.n_undefined == 1
        assert scores.fixed.n_undefined == 0
        found = interval_table(scores).filter(anchors="recomputed")
        assert set(found["n_undefined"]) == {1}
        assert set(found["n_replicates"]) == {3125}

    def test_one_seed_says_that_there_is_nothing_to_resample(self, table):
        scores = bootstrap_paired(
            collect(table.filter(seed=0)), generator=generator(0), n_replicates=10, weights=WEIGHTS
        )
        found = interval_table(scores)
        assert set(found["reason"]) == {"one seed: there is nothing to resample"}
        assert found["percentile_low"].null_count() == len(found)
        assert found["point"].null_count() == 0


class TestTables:
    @pytest.mark.parametrize("make", TABLES)
    def test_every_table_has_its_schema_and_both_variants(self, exact, make):
        found = make(exact)
        assert found.schema == TABLES[make]
        if make is not axis_table:
            assert set(found["anchors"]) == {"recomputed", "fixed"}
        assert set(found["resampled"]) == {"label_subsample_exact"}
        assert found["reason"].null_count() == len(found)

    @pytest.mark.parametrize("make", TABLES)
    def test_a_withheld_bootstrap_has_every_row_with_nulls_and_the_reason(self, table, make):
        one_seed = enumerate_paired(collect(table.filter(seed=1)), weights=WEIGHTS)
        found = make(one_seed)
        assert len(found) == len(make(enumerate_paired(collect(table), weights=WEIGHTS)))
        assert set(found["reason"]) == {"one seed: there is nothing to resample"}

    @pytest.mark.parametrize("make", TABLES)
    @pytest.mark.parametrize("kept", [["oak"], []])
    def test_a_panel_of_one_or_none_has_no_crs_and_says_so(self, records, make, kept):
        few = records.of_encoders([ENCODERS.index(name) for name in kept])
        found = make(enumerate_paired(few, weights=WEIGHTS))
        assert found.schema == TABLES[make]
        n_rows = 0 if make is difference_table else len(kept)
        assert found["reason"].n_unique() == n_rows
        assert set(found["reason"]) <= {"a panel needs two encoders or more, not 1"}

    def test_bias_is_the_mean_less_the_point(self, exact):
        found = interval_table(exact).filter(anchors="recomputed")
        np.testing.assert_allclose(found["mean"], mean(exact.recomputed))
        np.testing.assert_allclose(found["bias"], mean(exact.recomputed) - exact.point)

    def test_ranks_of_each_encoder_sum_to_one(self, exact):
        found = rank_table(exact)
        last = found.filter(rank=len(ENCODERS))["probability_at_most"]
        np.testing.assert_allclose(last, 1)
        np.testing.assert_allclose(
            found.group_by("anchors", "rank").agg(pl.col("probability").sum())["probability"], 1
        )

    def test_differences_put_the_better_point_first(self, exact):
        found = difference_table(exact)
        assert len(found) == 2 * 10
        assert (found["point"] >= 0).all()
        wide = found.filter(pl.col("percentile_low") < 0, pl.col("percentile_high") > 0)
        assert not wide["resolved"].any()

    def test_the_leader_has_the_highest_point_and_is_in_its_own_tier(self, exact):
        found = tier_table(exact)
        leader = ENCODERS[int(exact.point.argmax())]
        assert set(found["leader"]) == {leader}
        assert found.filter(encoder=leader)["unresolved_from_leader"].all()
        sizes = found.group_by("anchors").agg(
            pl.col("in_leading_tier").sum(), pl.col("tier_size").first()
        )
        assert (sizes["in_leading_tier"] == sizes["tier_size"]).all()


def test_the_records_of_a_full_panel_have_the_schema_of_run_records(table):
    assert table.schema == RUN_RECORD
