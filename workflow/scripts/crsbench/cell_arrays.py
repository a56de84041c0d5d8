"""Arrays of cells out of tables, and the CRS of every encoder over a set of datasets.

Law: arrays of cells have shape (K, D, V), encoders by datasets by columns; NaN is a cell that is
missing or undefined. A cell with any undefined axis is not observed at all; an encoder without an
observed cell is no member of the panel, and has NaN.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from crsbench.arrays import Bools, Floats
from crsbench.crs import (
    Weights,
    aggregate,
    anchors,
    check_members,
    score_cohort,
    why_undefined,
)
from crsbench.errors import DataError
from crsbench.records import CLEAN


def cell_array(
    table: pl.DataFrame, columns: Sequence[str], *, encoders: Sequence[str], datasets: Sequence[str]
) -> Floats:
    """Return columns of a table with one row per cell as an array, shape (K, D, V).

    Parameters
    ----------
    table
        Has columns encoder and dataset, such as axes.csv; rows of other cells are left out.
    columns
        The V columns, of numbers.

    Raises
    ------
    DataError
        For a cell that has two rows.
    """
    rows = table.filter(
        pl.col("encoder").is_in(list(encoders)) & pl.col("dataset").is_in(list(datasets))
    )
    repeated = rows.filter(rows.select("encoder", "dataset").is_duplicated())
    if not repeated.is_empty():
        encoder, dataset = repeated.select("encoder", "dataset").row(0)
        raise DataError(f"cell {encoder} on {dataset} has two rows; expected one row per cell")
    values = np.full((len(encoders), len(datasets), len(columns)), np.nan)
    k = [list(encoders).index(name) for name in rows["encoder"]]
    d = [list(datasets).index(name) for name in rows["dataset"]]
    values[k, d] = rows.select(pl.col(columns).cast(pl.Float64).fill_null(np.nan)).to_numpy()
    return values


def clean_full_label_rows(metric_rows: pl.DataFrame, *, probe: str) -> pl.DataFrame:
    """Return the metric rows of one probe with all labels on clean images."""
    return metric_rows.filter(
        (pl.col("probe") == probe)
        & (pl.col("label_fraction") == 1.0)
        & (pl.col("perturbation") == CLEAN)
    )


def own_side(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that were evaluated on the dataset's own test side, one per cell."""
    return rows.filter(pl.col("target") == pl.col("dataset"))


def observed_cells(axes: Floats) -> Bools:
    """Return which cells have all four axes, shape (K, D)."""
    return np.logical_and.reduce(np.isfinite(axes), axis=-1)


def cohort_crs(axes: Floats, *, weights: Weights) -> Floats:
    """Return the CRS of each encoder relative to all that have a cell, shape (K,).

    Parameters
    ----------
    axes
        Raw axes of cells, shape (K, D, 4): all datasets for the aggregate, one for a domain.
    weights
        Component and axis weights.

    Returns
    -------
    NaN for an encoder without observed cells, and throughout when the panel has fewer than two
    members or an axis of zero width.
    """
    observed = observed_cells(axes)
    member = observed.any(axis=1)
    crs = np.full(len(axes), np.nan)
    if member.any():
        panel = aggregate(axes[member], observed[member])
        crs[member] = score_cohort(panel, weights=weights).crs
    return crs


def why_no_crs(axes: Floats, encoders: Sequence[str]) -> str | None:
    """Say why a panel of raw axes (K, 4) has no CRS; None where it has.

    Raises
    ------
    CrsBenchError
        For an encoder named twice, and for an axis that is not finite.
    """
    check_members(axes, encoders)
    return why_undefined(anchors(axes), encoders)
