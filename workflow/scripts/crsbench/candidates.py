"""Candidates: encoders that are scored against a reference without becoming part of it.

Law: a candidate's axes are in the reference's units, and nothing is converted or guessed. The
members stand beside the candidates with the scores that they have always had, to the last bit.
"""

import math
from collections.abc import Collection
from pathlib import Path

import polars as pl

from crsbench.crs import AXES
from crsbench.crs_table import crs_table, member_axes
from crsbench.errors import CrsBenchError
from crsbench.reference import AGGREGATE, RAW, Member, Reference

COLUMNS = ("encoder", "dataset", *AXES)


def read_candidates(
    path: str | Path, reference: Reference, *, supplements: Collection[str]
) -> pl.DataFrame:
    """Read a CSV of axes that a user wants scored against a reference.

    Parameters
    ----------
    path
        A CSV with the columns encoder, dataset and the four axes. In normalised units there are
        no datasets: the column is left out.
    reference
        The reference, for its units.
    supplements
        Further columns that a run writes beside its axes; they are left out.

    Returns
    -------
    pl.DataFrame
        Columns encoder, dataset and the four axes.

    Raises
    ------
    CrsBenchError
        When a column is missing or unknown, a value is missing, no number or outside [0, 1] (raw
        label efficiency: [0, 2]), or the axes are in other units than the reference.
    """
    path = Path(path)
    if not path.is_file():
        raise CrsBenchError(f"{path}: no such file of axes")
    try:
        table = pl.read_csv(path, infer_schema=False)
    except pl.exceptions.PolarsError as error:
        raise CrsBenchError(f"{path}: not a CSV table: {error}") from error
    table = _in_units(table, reference, path)
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise CrsBenchError(
            f"{path}: column {', '.join(missing)} missing; needed: {', '.join(COLUMNS)}"
        )
    unknown = [name for name in table.columns if name not in {*COLUMNS, *supplements}]
    if unknown:
        raise CrsBenchError(
            f"{path}: unknown axis {', '.join(map(repr, unknown))}; axes are {', '.join(AXES)}; "
            f"other columns that are known, and left out: {', '.join(supplements)}"
        )
    return _checked_numbers(table.select(COLUMNS), reference.units, path)


def _in_units(table: pl.DataFrame, reference: Reference, path: Path) -> pl.DataFrame:
    """Give a table in normalised units its one dataset; refuse the wrong units."""
    if reference.units == RAW:
        if "dataset" not in table.columns and set(AXES) <= set(table.columns):
            raise CrsBenchError(
                f"{path}: no column dataset; reference {reference.name} is in raw units and needs "
                f"the raw axes on each dataset ({', '.join(reference.datasets)})"
            )
        return table
    if "dataset" in table.columns:
        raise CrsBenchError(
            f"{path}: has a column dataset, so raw axes; reference {reference.name} is in "
            "normalised units: give one row per encoder, each axis on the published 0-to-1 scale"
        )
    return table.with_columns(pl.lit(AGGREGATE).alias("dataset"))


def _checked_numbers(table: pl.DataFrame, units: str, path: Path) -> pl.DataFrame:
    columns: dict[str, list[float]] = {name: [] for name in AXES}
    for line, row in enumerate(table.iter_rows(named=True), start=2):
        if not (row["encoder"] and row["dataset"]):
            raise CrsBenchError(f"{path}, line {line}: encoder or dataset is empty")
        for name, values in columns.items():
            highest = 2.0 if units == RAW and name == "label_efficiency" else 1.0
            value = _parsed(row[name])
            if not 0 <= value <= highest:
                raise CrsBenchError(
                    f"{path}, line {line}, {name}: got {row[name]!r}, expected {units} units, "
                    f"a number from 0 to {highest:g}"
                )
            values.append(value)
    return table.with_columns(pl.Series(name, values) for name, values in columns.items())


def _parsed(text: str | None) -> float:
    """Return the number that a text holds, NaN when it holds none."""
    try:
        return float(text or "")
    except ValueError:
        return math.nan


def score_candidates(candidates: pl.DataFrame, *, reference: Reference) -> pl.DataFrame:
    """Score candidates beside the members of a reference, whose scores stay as they are.

    Parameters
    ----------
    candidates
        Columns encoder, dataset and the four axes, as `read_candidates` returns them.
        A member named here is scored with these axes, against the others as frozen.
    reference
        The reference; it is restricted to the candidates' datasets.

    Returns
    -------
    pl.DataFrame
        The aggregate scope of `CRS_TABLE`, members and candidates together.

    Raises
    ------
    CrsBenchError
        For a dataset that the reference lacks, and a candidate named twice on one.
    """
    reference = reference.restrict(candidates["dataset"])
    names = list(candidates["encoder"].unique(maintain_order=True))
    frozen = member_axes(reference).filter(~pl.col("encoder").is_in(names))
    known = {member.encoder for member in reference.panel}
    added = [Member(name, name, "candidate") for name in names if name not in known]
    table = crs_table(
        pl.concat([frozen, candidates.select(frozen.columns)]),
        encoders=[*reference.panel, *added],
        reference=reference,
    )
    return table.filter(pl.col("scope") == AGGREGATE)
