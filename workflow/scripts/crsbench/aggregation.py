"""Aggregation: the run records of all cells become one table, and its metric rows."""

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from crsbench.records import (
    METRIC_ROW,
    METRICS,
    ROW_KEY,
    RUN_RECORD,
    RunKey,
    check_complete,
    read_records,
)


def gather(paths: Iterable[str | Path], *, expected: Iterable[RunKey]) -> pl.DataFrame:
    """Read the run records of all cells, in the order of the expected keys, each exactly once."""
    expected = list(expected)
    records = pl.concat([read_records(path, RUN_RECORD) for path in paths])
    check_complete(records, expected)
    schema = {name: RUN_RECORD[name] for name in RunKey._fields}
    ordered = pl.DataFrame(expected, schema=schema, orient="row")
    joined = ordered.join(records, on=RunKey._fields, how="left", maintain_order="left")
    return joined.select(RUN_RECORD.names())


def average_over_seeds(records: pl.DataFrame) -> pl.DataFrame:
    """Average run records over their seeds into metric rows (protocol, section 7).

    A metric is undefined in the row if it is undefined for any seed; the reasons are kept. Rows
    stand in the order in which their keys first appear.
    """
    key = list(ROW_KEY)
    reasons = pl.col("undefined").explode(keep_nulls=False, empty_as_null=False)
    rows = records.group_by(key, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("n_seeds"),
        pl.col("n_train").mean(),
        *(_mean_if_all_defined(name) for name in METRICS),
        reasons.unique(maintain_order=True).alias("undefined"),
    )
    joined = rows.join(_mean_class_auroc(records), on=key, how="left", maintain_order="left")
    return joined.select(METRIC_ROW.names())


def _mean_if_all_defined(name: str) -> pl.Expr:
    column = pl.col(name)
    return pl.when(column.is_null().any()).then(None).otherwise(column.mean()).alias(name)


def _mean_class_auroc(records: pl.DataFrame) -> pl.DataFrame:
    """Average each class's AUROC over the seeds; undefined for one seed is undefined."""
    key = list(ROW_KEY)
    numbered = records.select(*key, "class_auroc").with_columns(
        pl.int_ranges(pl.col("class_auroc").list.len()).alias("class")
    )
    per_class = (
        numbered.explode("class_auroc", "class")
        .group_by(*key, "class", maintain_order=True)
        .agg(_mean_if_all_defined("class_auroc"))
    )
    return per_class.group_by(key, maintain_order=True).agg("class_auroc")
