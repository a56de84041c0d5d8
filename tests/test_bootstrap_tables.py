"""Tables of a bootstrap: all scopes side by side, the same draws in each, nothing left out."""

import numpy as np
import polars as pl
import pytest
from panel_oracle import DATASETS, ENCODERS, WEIGHTS, run_records

from crsbench.bootstrap_tables import TABLES, bootstrap_tables, seed_bootstraps
from crsbench.config import MOST_EXACT_SEEDS
from crsbench.resampling import MOST_ENUMERABLE_UNITS
from crsbench.seed_records import collect_seed_records

N = 200
SCOPES = ["aggregate", *DATASETS]
KEY = ["scope", "resampled", "anchors"]


def tables_of(records, draws=("paired", "exact", "per_dataset"), seed=0):
    return bootstrap_tables(
        seed_bootstraps(records, draws=draws, n_replicates=N, seed=seed, weights=WEIGHTS)
    )


@pytest.fixture(scope="module")
def records():
    return collect_seed_records(
        run_records(), probe="logistic", encoders=ENCODERS, datasets=DATASETS
    )


@pytest.fixture(scope="module")
def tables(records):
    return tables_of(records)


def test_every_table_has_every_scope_and_every_way_of_drawing(tables):
    ways = ["label_subsample", "label_subsample_exact", "label_subsample_per_dataset"]
    assert list(tables) == list(TABLES)
    for table in tables.values():
        found = set(table.select("scope", "resampled").iter_rows())
        assert found == {(scope, way) for scope in SCOPES for way in ways}


def test_the_probabilities_of_an_encoders_ranks_and_of_a_rank_sum_to_one(tables):
    for by in ("encoder", "rank"):
        sums = tables["ranks"].group_by(*KEY, by).agg(pl.col("probability").sum())
        np.testing.assert_allclose(sums["probability"], 1, atol=1e-12)


def test_a_domain_is_drawn_like_the_aggregate_and_alike_for_every_panel(records, tables):
    alone = tables_of(records.of_dataset(DATASETS[0]), ["paired"])["intervals"]
    both = tables["intervals"].filter(
        (pl.col("scope") == DATASETS[0]) & (pl.col("resampled") == "label_subsample")
    )
    assert alone.filter(pl.col("scope") == DATASETS[0]).equals(both)


def test_another_seed_draws_other_replicates_of_the_same_scores(records):
    first, second = (tables_of(records, ["paired"], seed)["intervals"] for seed in (0, 1))
    assert first["point"].equals(second["point"])
    assert not first["mean"].equals(second["mean"])


def test_a_scope_of_one_encoder_says_in_every_table_that_it_has_no_score(records):
    alone = records.of_encoders([0])
    for table in tables_of(alone, ["paired"]).values():
        assert set(table["scope"]) == set(SCOPES)
        assert set(table["reason"]) == {"a panel needs two encoders or more, not 1"}


def test_the_settings_refuse_as_many_seeds_as_cannot_be_enumerated():
    assert MOST_EXACT_SEEDS == MOST_ENUMERABLE_UNITS
