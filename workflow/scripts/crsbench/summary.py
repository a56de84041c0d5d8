"""Summaries for the terminal: the plan of a run, and its table of scores."""

from collections import Counter
from pathlib import Path

import polars as pl

from crsbench.errors import DataError
from crsbench.plan import Plan
from crsbench.records import RunKey

_SHOWN = (
    ("rank", "rank", "{}"),
    ("encoder", "label", "{}"),
    ("CRS", "crs", "{:.3f}"),
    ("D", "dominance", "{:.3f}"),
    ("S", "ideal_point", "{:.3f}"),
    ("W", "worst_axis", "{:.3f}"),
    ("discr.", "discrimination", "{:.2f}"),
    ("calib.", "calibration", "{:.2f}"),
    ("lab.eff.", "label_efficiency", "{:.2f}"),
    ("robust.", "robustness", "{:.2f}"),
    ("AUROC", "auroc", "{:.3f}"),
    ("rank", "auroc_rank", "{}"),
    ("cells", "n_cells", "{}"),
)


def plan_lines(plan: Plan) -> list[str]:
    """Return the cells of a plan with the records each yields, and the totals."""
    keys = list(plan.run_keys())
    per_cell = Counter((key.encoder, key.dataset) for key in keys)
    table = [("encoder", "dataset", "records", "rows", "of which shift")]
    for cell in plan.cells:
        own = [key for key in keys if (key.encoder, key.dataset) == cell]
        shifted = sum(key.target != key.dataset for key in own)
        table.append((*cell, str(per_cell[cell]), str(len(_rows(own))), str(shifted)))
    return [
        *_aligned(table),
        "",
        *(f"excluded: {encoder} on {dataset}: {why}" for encoder, dataset, why in plan.excluded),
        f"{len(plan.cells)} cells, {len(keys):,} run records, {len(_rows(keys)):,} metric rows",
    ]


def _rows(keys: list[RunKey]) -> set[RunKey]:
    return {key._replace(seed=-1) for key in keys}


def table_lines(folder: Path) -> list[str]:
    """Return a run's aggregate scores, its notes, and where its results are."""
    path = folder / "crs_table.csv"
    if not path.is_file():
        raise DataError(f"{path}: no table of scores yet; run snakemake with the same options")
    rows = pl.read_csv(path).filter(pl.col("scope") == "aggregate")
    table = [tuple(title for title, _, _ in _SHOWN)]
    table += [
        tuple(_formatted(form, row[column]) for _, column, form in _SHOWN)
        for row in rows.iter_rows(named=True)
    ]
    notes = (folder / "crs_notes.md").read_text(encoding="utf-8").splitlines()
    results = [path, folder / "crs_notes.md", folder / "axes.csv", *sorted(folder.glob("*.parquet"))]
    figures = sorted((folder / "figures").glob("*.png"))
    return [*_aligned(table), "", *notes, "", *map(str, results), *map(str, figures)]


def _formatted(form: str, value: object) -> str:
    return "–" if value is None else form.format(value)


def _aligned(table: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
