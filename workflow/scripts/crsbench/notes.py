"""The notes beside a table of scores: what was left out, and what its reader has to know.

Nothing that changes who is compared with whom goes unsaid: excluded cells and samples, dropped
classes, suspect features, undefined scores, near ties, and anchors that moved since the table was
last made.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl

from crsbench.files import read_metadata
from crsbench.reference import Reference

_N_SHOWN = 12


def notes_text(
    reference: Reference,
    *,
    excluded: Sequence[Sequence[str]],
    samples: Iterable[str],
    about_scores: pl.DataFrame,
    near_ties: pl.DataFrame,
    features: Iterable[str],
) -> str:
    """Return the notes as Markdown.

    Parameters
    ----------
    reference
        What the table is relative to.
    excluded
        ``(encoder, dataset, reason)`` of the selected cells that are not in the run.
    samples
        Lines about samples and classes (`sample_lines`).
    about_scores
        Scope, kind and text of each note (`crsbench.crs_table.crs_notes`).
    near_ties
        Relations of dominance that a small change would turn over.
    features
        Lines about features (`feature_lines`).
    """
    n_cells = int(reference.cells.observed.sum())
    sections = {
        "Reference": [
            f"{reference.name} {reference.digest[:12]}: {len(reference.panel)} encoders, "
            f"{', '.join(reference.datasets)}, {n_cells} observed cells"
        ],
        "Cells that are not in the run": [
            f"{encoder} on {dataset}: {reason}" for encoder, dataset, reason in excluded
        ],
        "Samples and classes": list(samples),
        "Features": list(features),
        "Scores": [f"{scope}, {kind}: {text}" for scope, kind, text in about_scores.iter_rows()],
        "Near ties of dominance": _tie_lines(near_ties),
    }
    blocks = [_section(title, lines) for title, lines in sections.items()]
    return "# Notes to the table of scores\n\n" + "\n".join(blocks)


def _section(title: str, lines: Sequence[str]) -> str:
    return f"## {title}\n\n" + "".join(f"- {line}\n" for line in lines or ["none"])


def sample_lines(
    exclusions: Iterable[str | Path],
    noted: Iterable[str | Path],
    prevalence: Iterable[str | Path],
) -> list[str]:
    """Return how many images each set has, why samples were left out, and the tables' notes.

    Parameters
    ----------
    exclusions
        ``data/{dataset}/exclusions.csv`` of each dataset.
    noted
        ``split.parquet`` and ``subsamples.parquet`` of each dataset; their metadata hold notes.
    prevalence
        ``data/{dataset}/prevalence.csv`` of each dataset; its column ``note`` holds notes.
    """
    prevalences = {
        path.parent.name: pl.read_csv(path, schema_overrides={"note": pl.String})
        for path in map(Path, prevalence)
    }
    lines = [f"{name}: images: {_sizes(table)}" for name, table in prevalences.items()]
    for path in map(Path, exclusions):
        reasons = pl.read_csv(path, schema_overrides={"reason": pl.String})["reason"]
        kinds = reasons.str.split(": ").list.first()
        for kind, count in sorted(kinds.value_counts().iter_rows()):
            lines.append(f"{path.parent.name}: {count} listed as {kind!r} in {path}")
    for path in map(Path, noted):
        notes = json.loads(read_metadata(path)["notes"])
        lines += [f"{path.parent.name}: {note}" for note in notes]
    for name, table in prevalences.items():
        lines += [f"{name}: {note}" for note in table["note"].drop_nulls() if note]
    return lines


def _sizes(prevalence: pl.DataFrame) -> str:
    sizes = prevalence.select("set", "n_images").unique(maintain_order=True)
    return ", ".join(f"{name} {n_images:,}" for name, n_images in sizes.iter_rows())


def feature_lines(run_records: pl.DataFrame) -> list[str]:
    """Return a line for each feature table that is suspect.

    Two encoders that give the same bits are a sign that one's weights or options were ignored.

    Parameters
    ----------
    run_records
        Columns encoder, target, feature_values_digest and feature_flags.
    """
    columns = ("encoder", "target", "feature_flags", "feature_values_digest")
    tables = run_records.select(columns).unique(maintain_order=True)
    lines = []
    holders: dict[tuple[str, str], str] = {}
    for encoder, target, flags, digest in tables.iter_rows():
        if flags:
            lines.append(f"{encoder} on {target}: {flags}")
        holder = holders.setdefault((target, digest), encoder)
        if holder != encoder:
            lines.append(
                f"{encoder} and {holder} on {target}: bit-identical features; are the weights or "
                "the options of one ignored?"
            )
    return lines


def _tie_lines(near_ties: pl.DataFrame) -> list[str]:
    lines = [
        f"{row['scope']}: {row['encoder']} {'dominates' if row['dominates'] else 'misses'} "
        f"{row['other']} by {row['margin']:.1e} on {row['axis']}; CRS would change by "
        f"{row['crs_change']:+.3f}"
        for row in near_ties.iter_rows(named=True)
    ]
    more = len(lines) - _N_SHOWN
    return lines[:_N_SHOWN] + ([f"and {more} more"] if more > 0 else [])
