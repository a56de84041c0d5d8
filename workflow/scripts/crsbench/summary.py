"""Summaries for the terminal: the plan of a run, and its table of scores."""

from collections.abc import Collection, Sequence
from pathlib import Path

import polars as pl

from crsbench.crs_table import read_crs_table
from crsbench.errors import DataError
from crsbench.plan import Plan
from crsbench.records import RunKey
from crsbench.reference import AGGREGATE
from crsbench.score_bootstrap import INTERVALS, RANKS

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
    ("AUROC rank", "auroc_rank", "{}"),
    ("cells", "n_cells", "{}"),
)
#: The intervals of the table: how their files' names begin, and which way of resampling is shown.
#: Of the case bootstrap it is the last, which draws cases and seeds.
_BOOTSTRAPS = {
    "label subsample": ("", pl.col("resampled").first()),
    "cases and label subsample": ("case_", pl.col("resampled").last()),
}
_UNDEFINED = "-"
_ROUNDING = 1e-9


def plan_lines(plan: Plan) -> list[str]:
    """Return the cells of a plan with the records each yields, and the totals.

    Both are those of the primary probe. Further probes are counted apart.
    """
    primary, *others = plan.settings.probes
    keys: dict[str, list[RunKey]] = {probe: [] for probe in plan.settings.probes}
    for key in plan.run_keys():
        keys[key.probe].append(key)
    table = [("encoder", "dataset", "records", "rows", "of which shift")]
    for cell in plan.cells:
        own = [key for key in keys[primary] if (key.encoder, key.dataset) == cell]
        shifted = sum(key.target != key.dataset for key in own)
        table.append((*cell, str(len(own)), str(len(_rows(own))), str(shifted)))
    return [
        *aligned(table),
        "",
        *(f"excluded: {encoder} on {dataset}: {why}" for encoder, dataset, why in plan.excluded),
        f"{len(plan.cells)} cells, {_counts(keys[primary])}",
        *(f"counted apart, not scored: {probe}: {_counts(keys[probe])}" for probe in others),
    ]


def _counts(keys: list[RunKey]) -> str:
    return f"{len(keys):,} run records, {len(_rows(keys)):,} metric rows"


def _rows(keys: list[RunKey]) -> set[RunKey]:
    return {key._replace(seed=-1) for key in keys}


def table_lines(folder: Path) -> list[str]:
    """Return a run's aggregate scores, its intervals, its notes, and where its results are."""
    path = folder / "crs_table.csv"
    if not path.is_file():
        raise DataError(f"{path}: no table of scores yet; run snakemake with the same options")
    rows = read_crs_table(path).filter(pl.col("scope") == AGGREGATE)
    columns, remarks = _interval_columns(rows, folder / "bootstrap")
    notes = (folder / "crs_notes.md").read_text(encoding="utf-8").splitlines()
    results = [
        path,
        folder / "crs_notes.md",
        folder / "axes.csv",
        *sorted(folder.glob("[!.]*.parquet")),
    ]
    analyses = [folder / name for name in ("bootstrap", "validity") if (folder / name).is_dir()]
    figures = sorted((folder / "figures").glob("[!.]*.png"))
    return [
        *aligned(_score_table(rows, columns)),
        "",
        *remarks,
        *notes,
        "",
        *map(str, [*results, *analyses, *figures]),
    ]


def candidate_lines(table: pl.DataFrame, names: Collection[str]) -> list[str]:
    """Return the scores of candidates and of the members of their reference.

    Parameters
    ----------
    table
        The aggregate scope of `crs_table.CRS_TABLE`, as `candidates.score_candidates` returns it.
    names
        The candidates.
    """
    name, digest = table.select("reference", "reference_digest").row(0)
    candidates = table.filter(pl.col("encoder").is_in(list(names)))
    beyond = [
        f"{encoder}: at or beyond an anchor on {saturated.replace(';', ', ')}"
        for encoder, saturated in candidates.select("encoder", "saturated").iter_rows()
        if saturated
    ]
    return [
        *aligned(_score_table(table, [])),
        "",
        f"reference {name} {digest[:12]}; candidates: {', '.join(candidates['encoder'])}",
        *beyond,
    ]


Column = tuple[str, dict[str, str]]


def _score_table(rows: pl.DataFrame, columns: Sequence[Column]) -> list[tuple[str, ...]]:
    """Return the table with a header; `columns` are further ones, by encoder."""
    header = [*(title for title, _, _ in _SHOWN), *(title for title, _ in columns)]
    return [tuple(header)] + [
        (
            *(_formatted(form, row[column]) for _, column, form in _SHOWN),
            *(texts.get(row["encoder"], _UNDEFINED) for _, texts in columns),
        )
        for row in rows.iter_rows(named=True)
    ]


def _interval_columns(rows: pl.DataFrame, folder: Path) -> tuple[list[Column], list[str]]:
    """Return the columns of the bootstraps that were made, and what is to be said about them."""
    columns: list[Column] = []
    remarks = []
    for name, (prefix, way) in _BOOTSTRAPS.items():
        path = folder / f"{prefix}intervals.csv"
        ranks = folder / f"{prefix}ranks.csv"
        if not (path.is_file() and ranks.is_file()):
            continue
        intervals = _one_way(path, INTERVALS, way)
        if not _belong_together(rows, intervals):
            remarks.append(f"{path}: of other scores than this table's; left out")
            continue
        columns += [
            (f"95 % {name}", _bounds(intervals)),
            ("P(1st)", _chances(_one_way(ranks, RANKS, way).filter(pl.col("rank") == 1))),
        ]
        remarks += _undefined_remarks(name, intervals)
    return columns, [*remarks, ""] if remarks else []


def _one_way(path: Path, schema: pl.Schema, way: pl.Expr) -> pl.DataFrame:
    """Read the aggregate rows with recomputed anchors, of one way of resampling."""
    table = pl.read_csv(path, schema={"scope": pl.String(), **schema})
    return table.filter(
        (pl.col("scope") == AGGREGATE)
        & (pl.col("anchors") == "recomputed")
        & (pl.col("resampled") == way)
    )


def _undefined_remarks(name: str, intervals: pl.DataFrame) -> list[str]:
    """Return why there is no interval, or of how many replicates it could not be made."""
    reasons = intervals["reason"].drop_nulls().unique(maintain_order=True)
    remarks = [f"95 % {name}: undefined: {reason}" for reason in reasons]
    worst = intervals.filter(pl.col("reason").is_null() & (pl.col("n_undefined") > 0))
    if not worst.is_empty():
        n_undefined, n_replicates = worst.select(pl.col("n_undefined", "n_replicates").max()).row(0)
        remarks.append(
            f"95 % {name}: up to {n_undefined:,} of {n_replicates:,} replicates have no score and "
            "are left out: do not take it at face value"
        )
    return remarks


def _belong_together(rows: pl.DataFrame, intervals: pl.DataFrame) -> bool:
    """Whether the point estimates are the scores of the table, up to the order of sums."""
    both = rows.select("encoder", "crs").join(intervals, on="encoder", how="full")
    scored = both.filter(pl.col("crs").is_not_null() | pl.col("point").is_not_null())
    return bool(((scored["crs"] - scored["point"]).abs() < _ROUNDING).fill_null(value=False).all())


def _bounds(intervals: pl.DataFrame) -> dict[str, str]:
    columns = ("encoder", "percentile_low", "percentile_high")
    defined = intervals.select(columns).drop_nulls()
    return {encoder: f"[{low:.3f}, {high:.3f}]" for encoder, low, high in defined.iter_rows()}


def _chances(ranks: pl.DataFrame) -> dict[str, str]:
    defined = ranks.select("encoder", "probability").drop_nulls()
    return {encoder: f"{chance:.3f}" for encoder, chance in defined.iter_rows()}


def _formatted(form: str, value: object) -> str:
    return _UNDEFINED if value is None else form.format(value)


def aligned(table: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the rows of a table as lines, its columns padded to one width each."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
