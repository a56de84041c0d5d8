"""Tables of the validity analyses: all there for any panel, and saying what is undefined."""

import numpy as np
import polars as pl
import pytest
from panel_oracle import DATASETS, ENCODERS, WEIGHTS, run_records

from crsbench.aggregation import average_over_seeds
from crsbench.axes import axes_table
from crsbench.config import Validity
from crsbench.crs import AXES
from crsbench.crs_table import crs_table
from crsbench.reference import Member, cohort_reference
from crsbench.validity_tables import DISPLACEMENTS, panel_axes, validity_tables

DRAWS = Validity(
    panel_draws=5,
    panel_sizes=(4, 3),
    insertion_trials=4,
    weight_draws=6,
    weight_factors=(0.5, 1.5),
    held_out_target="discrimination",
)


@pytest.fixture(scope="module")
def metric_rows():
    return average_over_seeds(run_records())


@pytest.fixture(scope="module")
def cells(metric_rows):
    return axes_table(metric_rows, probe="logistic", robustness_fractions=(1.0,))


def tables_of(cells, metric_rows, *, seed=0):
    return validity_tables(
        cells,
        metric_rows,
        probe="logistic",
        ordinal_datasets=[DATASETS[1], "not in the run"],
        draws=DRAWS,
        seed=seed,
        weights=WEIGHTS,
    )


@pytest.fixture(scope="module")
def tables(cells, metric_rows):
    return tables_of(cells, metric_rows)


def test_ranks_are_those_of_the_table_of_scores(cells, tables):
    members = [Member(name, name, "") for name in ENCODERS]
    reference = cohort_reference(cells, encoders=members, weights=WEIGHTS)
    scores = crs_table(cells, encoders=members, reference=reference)
    both = tables["rank_moves"].join(scores, on=["scope", "encoder"], suffix="_of_scores")
    assert both.height == tables["rank_moves"].height == scores.height
    np.testing.assert_allclose(both["crs"], both["crs_of_scores"], atol=1e-12)
    np.testing.assert_array_equal(both["crs_rank"], both["rank"])
    np.testing.assert_allclose(both["auroc"], both["auroc_of_scores"], atol=1e-12)


def test_reversed_pairs_are_as_many_as_the_decisions_say(tables):
    for row in tables["decisions"].iter_rows(named=True):
        of_scope = tables["reversed_pairs"].filter(pl.col("scope") == row["scope"])
        assert of_scope.height == row["n_reversed"]


def test_the_settings_say_how_often_is_drawn(tables):
    drawn = tables["panel_summary"].filter(pl.col("kind") == "drawn")
    assert drawn.select("size", "n").rows() == [(4, 5), (3, 5)]
    assert tables["weight_summary"].select("family", "n").rows() == [
        ("axes", 6),
        ("components", 6),
        ("alternative", 1),
    ]
    summary = tables["insertion_summary"]
    assert summary["displacement"].to_list() == list(DISPLACEMENTS)
    assert summary["n"].to_list() == [4 * 3] * 3
    assert summary["max"][-1] == 0


def test_the_same_seed_gives_the_same_tables_and_another_one_other_draws(
    cells, metric_rows, tables
):
    again, other = (tables_of(cells, metric_rows, seed=seed) for seed in (0, 1))
    assert all(table.equals(tables[name]) for name, table in again.items())
    assert not other["weights"].equals(tables["weights"])
    assert other["decisions"].equals(tables["decisions"])


def test_a_panel_is_the_mean_over_observed_cells(cells):
    encoders, axes = panel_axes(cells)
    for encoder, found in zip(encoders, axes, strict=True):
        own = cells.filter((pl.col("encoder") == encoder) & pl.col("reason").is_null())
        np.testing.assert_allclose(found, own.select(AXES).mean().row(0), atol=1e-12)


@pytest.mark.parametrize("n_encoders", [1, 2])
def test_what_a_small_panel_cannot_say_has_its_reason(cells, metric_rows, n_encoders, tables):
    kept = pl.col("encoder").is_in(ENCODERS[:n_encoders])
    small = tables_of(cells.filter(kept), metric_rows.filter(kept))
    assert list(small) == list(tables)
    for name, table in small.items():
        assert table.schema == tables[name].schema
        if "reason" in table.columns and name not in ("informativeness", "probe_agreement"):
            assert table.height > 0
            numbers = table.select(pl.selectors.float())
            without = numbers.select(pl.any_horizontal(pl.all().is_null())).to_series()
            assert table.filter(without)["reason"].null_count() == 0, name


def test_a_panel_of_one_has_no_decision(cells, metric_rows):
    kept = pl.col("encoder") == ENCODERS[0]
    tables = tables_of(cells.filter(kept), metric_rows.filter(kept))
    reasons = tables["decisions"]["reason"].unique().to_list()
    assert reasons == ["a panel needs two encoders or more, not 1"]
    assert tables["rank_moves"].is_empty()
