"""Run records as arrays: the axes path as a second implementation, gaps and broken records."""

import numpy as np
import polars as pl
import pytest
from panel_oracle import DATASETS, ENCODERS, MISSING, run_records, slow_cell_axes

from crsbench.aggregation import average_over_seeds
from crsbench.axes import axes_table
from crsbench.cell_arrays import cell_array
from crsbench.crs import AXES
from crsbench.errors import DataError
from crsbench.resampling import enumerate_multisets
from crsbench.seed_records import cell_axes, collect_seed_records, panel_of

ONCE = np.ones((1, 5), int)


@pytest.fixture(scope="module")
def table():
    return run_records()


def collect(table, encoders=ENCODERS, datasets=DATASETS):
    return collect_seed_records(table, probe="logistic", encoders=encoders, datasets=datasets)


def test_all_seeds_once_give_the_axes_of_the_metric_rows(table):
    expected = axes_table(average_over_seeds(table), probe="logistic", robustness_fractions=(1.0,))
    expected = cell_array(expected, AXES, encoders=ENCODERS, datasets=DATASETS)
    np.testing.assert_allclose(cell_axes(collect(table), ONCE)[0], expected, atol=1e-12)


def test_every_multiset_agrees_with_plain_loops_over_the_drawn_records(table):
    counts = enumerate_multisets(5)[0][::25]
    found = cell_axes(collect(table), counts)
    for row, axes in zip(counts, found, strict=True):
        drawn = np.repeat(np.arange(5), row).tolist()
        for k, d in [(0, 0), (1, 1), (4, 1)]:
            expected = slow_cell_axes(table, ENCODERS[k], DATASETS[d], drawn)
            np.testing.assert_allclose(axes[k, d], expected, atol=1e-12)


def test_a_missing_cell_stays_nan_and_no_other(table):
    missing = np.isnan(cell_axes(collect(table), ONCE)[0])
    cell = ENCODERS.index(MISSING[0]), DATASETS.index(MISSING[1])
    assert missing[cell].all()
    missing[cell] = False
    assert not missing.any()


def test_records_of_other_encoders_and_data_sets_are_left_out(table):
    part = collect(table, encoders=("ash", "oak"), datasets=("chest",))
    whole = cell_axes(collect(table), ONCE)
    expected = whole[:, [ENCODERS.index("ash"), 0]][:, :, [1]]
    np.testing.assert_array_equal(cell_axes(part, ONCE), expected)


def test_the_order_of_the_records_does_not_matter(table):
    shuffled = table.sample(fraction=1, shuffle=True, seed=1)
    np.testing.assert_array_equal(
        cell_axes(collect(shuffled), ONCE), cell_axes(collect(table), ONCE)
    )


def test_one_data_set_keeps_its_axes(table):
    records = collect(table)
    chest = records.of_dataset("chest")
    np.testing.assert_array_equal(
        cell_axes(chest, ONCE)[:, :, 0], cell_axes(records, ONCE)[:, :, 1]
    )


def test_an_encoder_without_a_cell_leaves_the_panel(table):
    skin = collect(table).of_dataset("skin")
    assert panel_of(skin).encoders == ("oak", "elm", "ash", "fir")


def test_a_metric_that_is_undefined_for_one_seed_is_undefined_in_every_mean(table):
    spoiled = table.with_columns(
        pl.when(
            (pl.col("encoder") == "oak") & (pl.col("dataset") == "skin") & (pl.col("seed") == 3)
        )
        .then(None)
        .otherwise("ece")
        .alias("ece")
    )
    axes = cell_axes(collect(spoiled), np.array([[5, 0, 0, 0, 0]]))[0, 0, 0]
    assert np.isnan(axes).tolist() == [False, True, False, False]


def test_a_run_without_perturbations_or_low_fractions_lacks_just_those_axes(table):
    clean = cell_axes(collect(table.filter(perturbation="clean")), ONCE)[0, 0]
    assert np.isnan(clean).all(axis=0).tolist() == [False, False, False, True]
    full = cell_axes(collect(table.filter(label_fraction=1.0)), ONCE)[0, 0]
    assert np.isnan(full).all(axis=0).tolist() == [False, False, True, False]


def test_without_a_class_in_common_robustness_is_undefined(table):
    without = table.with_columns(
        pl.when(pl.col("target") == "clinic")
        .then(pl.lit([None, None, None], pl.List(pl.Float64)))
        .otherwise("class_auroc")
        .alias("class_auroc")
    )
    axes = cell_axes(collect(without), ONCE)[0]
    assert np.isnan(axes[:, 1, 3]).all()
    assert not np.isnan(axes[:, 1, :3]).any()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda t: t.filter(
                ~((pl.col("encoder") == "elm") & (pl.col("seed") == 2) & (pl.col("severity") == 2))
            ),
            "elm on skin, seed 2, blur/2: 0 with macro_auroc, expected 1",
        ),
        (lambda t: pl.concat([t, t[:1]]), "oak on skin, seed 0, 0.01: 2 with macro_auroc"),
        (
            lambda t: t.filter(~((pl.col("target") == "clinic") & (pl.col("seed") == 4))),
            "on clinic: 4 records for 5 seeds",
        ),
        (
            lambda t: t.filter((pl.col("encoder") != "fir") | (pl.col("severity") == 0)),
            "fir on skin, seed 0, blur/1: 0 with macro_auroc",
        ),
        (lambda t: t.filter(pl.col("label_fraction") < 1), "none with all labels"),
        (lambda t: t.with_columns(probe=pl.lit("knn")), "none of probe logistic"),
    ],
)
def test_incomplete_records_are_refused_by_name(table, spoil, message):
    with pytest.raises(DataError, match=message):
        collect(spoil(table))


def test_a_shift_target_with_other_classes_is_refused(table):
    spoiled = table.with_columns(
        pl.when(pl.col("target") == "clinic")
        .then(pl.col("class_auroc").list.head(2))
        .otherwise("class_auroc")
        .alias("class_auroc")
    )
    with pytest.raises(DataError, match="on chest and clinic: class_auroc has shape"):
        collect(spoiled)
