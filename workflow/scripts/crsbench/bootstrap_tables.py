"""The tables of a bootstrap: all scopes and all ways of resampling in one tidy table of a kind.

Law: a scope is the aggregate CRS, or a dataset with the CRS of its own panel; all scopes see the
same draws. What is undefined is null, and `reason` says why; a scope for which a table has
nothing to list keeps one row that says so.
"""

from collections.abc import Iterable, Iterator, Sequence

import polars as pl

from crsbench.crs import Weights
from crsbench.digests import generator
from crsbench.reference import AGGREGATE
from crsbench.score_bootstrap import (
    ScoreReplicates,
    axis_table,
    difference_table,
    interval_table,
    rank_table,
    tier_table,
)
from crsbench.seed_bootstrap import bootstrap_paired, bootstrap_per_dataset, enumerate_paired
from crsbench.seed_records import SeedRecords

Scored = tuple[str, ScoreReplicates]

#: The tables by the name of their file.
TABLES = {
    "intervals": interval_table,
    "axes": axis_table,
    "ranks": rank_table,
    "differences": difference_table,
    "tiers": tier_table,
}


def bootstrap_tables(scored: Iterable[Scored]) -> dict[str, pl.DataFrame]:
    """Return every table of `TABLES`, with the scope as its first column.

    Parameters
    ----------
    scored
        Scope and replicates; a scope comes once for each way of resampling.
    """
    scored = list(scored)
    return {
        name: pl.concat(
            [_with_scope(make(scores), scope, scores.reason) for scope, scores in scored]
        )
        for name, make in TABLES.items()
    }


def _with_scope(table: pl.DataFrame, scope: str, reason: str | None) -> pl.DataFrame:
    if table.is_empty():
        table = pl.DataFrame([{"reason": reason}], schema=table.schema)
    return table.select(pl.lit(scope).alias("scope"), pl.all())


def seed_bootstraps(
    records: SeedRecords, *, draws: Sequence[str], n_replicates: int, seed: int, weights: Weights
) -> Iterator[Scored]:
    """Resample the shared seeds in every scope.

    Parameters
    ----------
    records
        The run records of all encoders and datasets.
    draws
        Ways of drawing: ``paired`` (the same seeds in all cells), ``exact`` (its distribution,
        enumerated), ``per_dataset`` (seeds anew for each dataset).
    n_replicates
        Random replicates of each way.
    seed
        What the random draws follow from.
    weights
        Component and axis weights.
    """
    for scope in (AGGREGATE, *records.datasets):
        part = records if scope == AGGREGATE else records.of_dataset(scope)
        for way in draws:
            yield scope, _resample(part, way, n_replicates, seed, weights)


def _resample(
    records: SeedRecords, way: str, n_replicates: int, seed: int, weights: Weights
) -> ScoreReplicates:
    if way == "exact":
        return enumerate_paired(records, weights=weights)
    resample = {"paired": bootstrap_paired, "per_dataset": bootstrap_per_dataset}[way]
    random = generator("label subsamples", way, seed)
    return resample(records, generator=random, n_replicates=n_replicates, weights=weights)
