"""Sensitivity: plain-loop oracles of every variant, invariances, small panels."""

import numpy as np
import polars as pl
import pytest
from panel_oracle import DATASETS, ENCODERS, MISSING, WEIGHTS, run_records, slow_crs
from scipy import stats

from crsbench.aggregation import average_over_seeds
from crsbench.axes import axes_table
from crsbench.cell_arrays import cell_array, cohort_crs
from crsbench.crs import AXES
from crsbench.errors import DataError
from crsbench.sensitivity import (
    HELD_OUT,
    SHIFT_PREDICTION,
    VARIANT_SCORES,
    VARIANTS,
    complete_members,
    estimator_substitutions,
    leave_one_dataset_out,
    shift_prediction,
    variant_scores,
    variants_table,
)

ALL_FOUR = [name for name in ENCODERS if name != MISSING[0]]


@pytest.fixture(scope="module")
def metric_rows():
    return average_over_seeds(run_records())


@pytest.fixture(scope="module")
def cells(metric_rows):
    return axes_table(metric_rows, probe="logistic", robustness_fractions=(1.0,))


def slow_scores(cells, change=None, encoders=ENCODERS, datasets=DATASETS):
    """CRS by encoder, from the cells' rows; `change` replaces axes of a row."""
    panel = {}
    for encoder in encoders:
        rows = [
            {**row, **(change(row) if change else {})}
            for row in cells.iter_rows(named=True)
            if row["encoder"] == encoder and row["dataset"] in datasets
        ]
        if rows:
            panel[encoder] = [sum(row[name] for row in rows) / len(rows) for name in AXES]
    return dict(zip(panel, slow_crs(list(panel.values())), strict=True))


def metric(metric_rows, row, name, target=None):
    return metric_rows.filter(
        encoder=row["encoder"],
        dataset=row["dataset"],
        target=target or row["dataset"],
        label_fraction=1.0,
        perturbation="clean",
    )[name].item()


@pytest.fixture(scope="module")
def variants(cells, metric_rows):
    return estimator_substitutions(
        cells, metric_rows, probe="logistic", ordinal_datasets=["skin"], weights=WEIGHTS
    )


class TestSubstitutions:
    def test_every_variant_agrees_with_plain_loops(self, variants, cells, metric_rows):
        changes = {
            "adaptive_ece": lambda r: {"calibration": 1 - metric(metric_rows, r, "adaptive_ece")},
            "brier": lambda r: {"calibration": 1 - metric(metric_rows, r, "brier")},
            "corruption_only": lambda r: {"robustness": r["robustness_corruption_only"]},
            "qwk": lambda r: {"discrimination": metric(metric_rows, r, "qwk")},
            "ordinal_mae": lambda r: {"discrimination": 4 - metric(metric_rows, r, "ordinal_mae")},
        }
        assert [variant.name for variant in variants] == list(changes)
        for variant in variants:
            scope = DATASETS if variant.scope == "aggregate" else (variant.scope,)
            before = slow_scores(cells, datasets=scope)
            after = slow_scores(cells, changes[variant.name], datasets=scope)
            table = variant_scores([variant])
            assert dict(table.select("encoder", "crs").rows()) == pytest.approx(before)
            assert dict(table.select("encoder", "crs_variant").rows()) == pytest.approx(after)
            row = variants_table([variant]).row(0, named=True)
            pairs = [(before[name], after[name]) for name in before]
            moved = [abs(b - a) for a, b in pairs]
            assert row["tau_b"] == pytest.approx(stats.kendalltau(*zip(*pairs, strict=True))[0])
            assert row["mean_change"] == pytest.approx(sum(moved) / len(moved))
            assert row["max_change"] == pytest.approx(max(moved))

    def test_only_observed_encoders_stand_in_a_domain(self, variants):
        table = variants_table(variants)
        assert table.schema == VARIANTS
        assert table["scope"].to_list() == ["aggregate"] * 3 + ["skin"] * 2
        assert table["n_encoders"].to_list() == [5, 5, 5, 4, 4]
        assert table["reason"][3] == "top 5 of 4 encoders is everyone"
        assert table["top3_overlap"].null_count() == 0

    def test_an_estimator_that_lacks_a_cell_is_undefined_and_names_it(self, cells, metric_rows):
        spoiled = metric_rows.with_columns(
            pl.when(pl.col("encoder") == "ash").then(None).otherwise("brier").alias("brier")
        )
        variants = estimator_substitutions(
            cells, spoiled, probe="logistic", ordinal_datasets=["chest"], weights=WEIGHTS
        )
        table = variants_table(variants)
        reasons = dict(table.select("variant", "reason").rows())
        assert reasons["brier"] == "brier is undefined in 2 cells (first: ash on skin)"
        assert reasons["qwk"] == "qwk is undefined in 5 cells (first: oak on chest)"
        assert table.filter(variant="brier")["tau_b"].item() is None


class TestCompleteMembers:
    def test_both_variants_agree_with_plain_loops(self, cells):
        table = variant_scores(complete_members(cells, weights=WEIGHTS))
        assert table.schema == VARIANT_SCORES
        expected = {
            "complete_members": slow_scores(cells, encoders=ALL_FOUR),
            "common_datasets": slow_scores(cells, datasets=("chest",)),
        }
        for name, scores in expected.items():
            found = table.filter(variant=name)
            assert dict(found.select("encoder", "crs_variant").rows()) == pytest.approx(scores)
        assert dict(
            table.filter(variant="common_datasets").select("encoder", "crs").rows()
        ) == pytest.approx(slow_scores(cells))

    def test_without_a_missing_cell_nothing_changes(self, cells):
        table = variants_table(
            complete_members(cells.filter(pl.col("encoder") != MISSING[0]), weights=WEIGHTS)
        )
        assert table["max_change"].to_list() == [0, 0]

    def test_without_a_common_data_set_it_says_so(self, cells):
        apart = cells.filter(
            (pl.col("dataset") == "skin") == pl.col("encoder").is_in(["oak", "elm"])
        )
        table = variants_table(complete_members(apart, weights=WEIGHTS))
        assert table["reason"].to_list() == [
            "no encoder has every dataset",
            "no dataset has every encoder",
        ]


class TestHeldOut:
    def test_every_fold_agrees_with_plain_loops(self, cells):
        table = leave_one_dataset_out(cells, weights=WEIGHTS)
        assert table.schema == HELD_OUT
        for row in table.iter_rows(named=True):
            kept = [name for name in DATASETS if name != row["held_out"]]
            crs = slow_scores(cells, datasets=kept)
            held = cells.filter(dataset=row["held_out"])
            auroc = dict(held.select("encoder", "discrimination").rows())
            names = [name for name in crs if name in auroc]
            assert row["n_encoders"] == len(names) == 4
            pairs = [(crs[name], auroc[name]) for name in names]
            assert row["rho"] == pytest.approx(stats.spearmanr(pairs).statistic)
            assert row["crs_winner"] == max(names, key=crs.get)
            assert row["held_out_winner"] == max(names, key=auroc.get)
            assert row["winner_recovered"] == (row["crs_winner"] == row["held_out_winner"])

    def test_a_single_data_set_cannot_be_held_out(self, cells):
        table = leave_one_dataset_out(cells.filter(dataset="chest"), weights=WEIGHTS)
        assert table["rho"].item() is None
        assert table["reason"].item() == (
            "0 encoders have a CRS on other datasets and a value on this one"
        )

    def test_another_axis_can_be_the_target(self, cells):
        table = leave_one_dataset_out(cells, weights=WEIGHTS, target="robustness")
        for row in table.iter_rows(named=True):
            held = cells.filter(dataset=row["held_out"])
            robustness = dict(held.select("encoder", "robustness").rows())
            assert row["held_out_winner"] == max(robustness, key=robustness.get)


class TestShift:
    def test_both_predictors_agree_with_plain_loops(self, cells, metric_rows):
        rows = metric_rows.with_columns(
            pl.when(pl.col("target") == "clinic")
            .then(pl.col("class_auroc").list.head(2).list.mean())
            .otherwise("macro_auroc")
            .alias("macro_auroc")
        )
        table = shift_prediction(cells, rows, probe="logistic", weights=WEIGHTS)
        assert table.schema == SHIFT_PREDICTION
        crs = slow_scores(cells, lambda r: {"robustness": r["robustness_corruption_only"]})
        chest = {row["encoder"]: row for row in cells.filter(dataset="chest").to_dicts()}
        target = [metric(rows, chest[name], "macro_auroc", "clinic") for name in ENCODERS]
        predictors = {
            "crs_without_shift": [crs[name] for name in ENCODERS],
            "source_auroc": [chest[name]["discrimination"] for name in ENCODERS],
        }
        for row in table.iter_rows(named=True):
            expected = stats.spearmanr(predictors[row["predictor"]], target).statistic
            assert row["rho"] == pytest.approx(expected)
            assert (row["dataset"], row["target"], row["n_encoders"]) == ("chest", "clinic", 5)

    def test_without_a_shift_target_the_table_is_empty(self, cells, metric_rows):
        own = metric_rows.filter(pl.col("target") == pl.col("dataset"))
        table = shift_prediction(cells, own, probe="logistic", weights=WEIGHTS)
        assert table.is_empty()
        assert table.schema == SHIFT_PREDICTION


class TestCellArrays:
    def test_a_cell_with_one_undefined_axis_is_not_observed(self, cells):
        axes = cell_array(cells, AXES, encoders=ENCODERS, datasets=DATASETS)
        spoiled = axes.copy()
        spoiled[0, 0, 2] = np.nan
        without = axes.copy()
        without[0, 0] = np.nan
        np.testing.assert_array_equal(
            cohort_crs(spoiled, weights=WEIGHTS), cohort_crs(without, weights=WEIGHTS)
        )
        assert np.isfinite(cohort_crs(spoiled, weights=WEIGHTS)).all()

    def test_a_panel_of_one_or_none_has_no_crs(self, cells):
        axes = cell_array(cells, AXES, encoders=ENCODERS[:1], datasets=DATASETS)
        assert np.isnan(cohort_crs(axes, weights=WEIGHTS)).all()
        assert np.isnan(cohort_crs(np.full((3, 2, 4), np.nan), weights=WEIGHTS)).all()

    def test_a_cell_that_stands_twice_is_refused(self, cells):
        with pytest.raises(DataError, match="cell oak on skin has two rows"):
            cell_array(pl.concat([cells, cells[:1]]), AXES, encoders=ENCODERS, datasets=DATASETS)
