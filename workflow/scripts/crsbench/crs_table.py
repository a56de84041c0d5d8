"""The CRS table: the encoders of a run scored against a reference, scope by scope.

Law: the reference comes first (`reference.cohort_reference` or `reference_files.load_reference`)
and is never touched. A scope without a score keeps its rows, with empty scores and a note. An
encoder with fewer datasets than the run is scored against the reference restricted to them, which
its row names, and has no rank among rows of the whole reference. Nothing is rounded.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from crsbench.crs import AXES, COMPONENTS, Bools, Floats, Scores, dominates, normalise, score
from crsbench.reference import (
    AGGREGATE,
    RAW,
    Cells,
    Member,
    Reference,
    Scope,
    anchor_moves,
    check_encoders,
    tabulate_cells,
)

CRS_TABLE = pl.Schema(
    {"scope": pl.String(), "rank": pl.Int64()}
    | dict.fromkeys(("encoder", "label", "group"), pl.String())
    | dict.fromkeys(("crs", *COMPONENTS, *AXES), pl.Float64())
    | dict.fromkeys((f"raw_{name}" for name in AXES), pl.Float64())
    | {"auroc": pl.Float64(), "auroc_rank": pl.Int64(), "saturated": pl.String()}
    | {"n_cells": pl.Int64(), "datasets": pl.String()}
    | {"reference": pl.String(), "reference_digest": pl.String()}
)
NEAR_TIES = pl.Schema(
    {
        "scope": pl.String(),
        "encoder": pl.String(),
        "other": pl.String(),
        "dominates": pl.Boolean(),
        "axis": pl.String(),
        "margin": pl.Float64(),
        "crs_change": pl.Float64(),
    }
)
NOTES = pl.Schema({"scope": pl.String(), "kind": pl.String(), "note": pl.String()})


class _Standing(NamedTuple):
    """Encoders scored in a scope: raw axes (K, 4) as means over the cells `used` (K, D).

    `ranked` is false for those that stand apart, scored against a part of the reference.
    """

    reference: Reference
    scope: Scope
    ranked: bool
    datasets: tuple[str, ...]
    encoders: tuple[str, ...]
    raw: Floats
    used: Bools
    scores: Scores


def crs_table(
    axes: pl.DataFrame, *, encoders: Sequence[Member], reference: Reference
) -> pl.DataFrame:
    """Score the encoders of a run against a reference.

    Parameters
    ----------
    axes
        The run's axes: encoder, dataset and the four axes, one row per cell.
    encoders
        The encoders of the run, in the order that breaks ties.
    reference
        The reference; it is restricted to the run's datasets.

    Returns
    -------
    pl.DataFrame
        `CRS_TABLE`: the aggregate first, then each dataset; in a scope by rank. Equal scores
        share the better rank. `saturated` lists the axes at or beyond an anchor.

    Raises
    ------
    CrsBenchError
        For a duplicate or unknown encoder, a repeated cell, a dataset that the reference lacks.
    """
    labels = {member.encoder: member for member in encoders}
    rows = [
        row for standing in _standings(axes, encoders, reference) for row in _rows(standing, labels)
    ]
    table = pl.DataFrame(rows, schema={**CRS_TABLE, "ranked": pl.Boolean()})
    return _ranked(table, list(labels))


def read_crs_table(path: str | Path) -> pl.DataFrame:
    """Read a table that `crs_table` computed and that was written as CSV."""
    return pl.read_csv(path, schema=CRS_TABLE)


def member_axes(reference: Reference) -> pl.DataFrame:
    """Return the axes of a reference's members as a table, one row per observed cell."""
    cells = reference.cells
    rows = [
        (encoder, dataset, *cells.values[row, column].tolist())
        for row, encoder in enumerate(cells.encoders)
        for column, dataset in enumerate(cells.datasets)
        if cells.observed[row, column]
    ]
    schema = {"encoder": pl.String, "dataset": pl.String} | dict.fromkeys(AXES, pl.Float64)
    return pl.DataFrame(rows, schema=schema, orient="row")


def _standings(
    axes: pl.DataFrame, encoders: Sequence[Member], reference: Reference
) -> Iterator[_Standing]:
    cells = tabulate_cells(axes)
    check_encoders(cells, encoders)
    reference = reference.restrict(cells.datasets)
    names = [member.encoder for member in encoders if member.encoder in cells.encoders]
    cells = cells.select(names, reference.datasets)
    yield from _aggregate_standings(cells, reference)
    for dataset in reference.datasets:
        if dataset != AGGREGATE:
            present = cells.present[:, cells.datasets.index(dataset)]
            yield _stand(cells, reference, dataset, present, ranked=True)


def _aggregate_standings(cells: Cells, reference: Reference) -> Iterator[_Standing]:
    """Score the aggregate; encoders with fewer datasets than expected stand apart."""
    expected = np.array([_expected(reference, encoder) for encoder in cells.encoders])
    apart = (cells.observed != expected).any(axis=1) & cells.observed.any(axis=1)
    yield _stand(cells, reference, AGGREGATE, ~apart, ranked=True)
    for kept in np.unique(cells.observed[apart], axis=0):
        part = reference.restrict(np.array(cells.datasets)[kept].tolist())
        these = apart & (cells.observed == kept).all(axis=1)
        yield _stand(cells, part, AGGREGATE, these, ranked=False)


def _expected(reference: Reference, encoder: str) -> Bools:
    """Return on which datasets an encoder has a cell when none is missing, shape (D,)."""
    if encoder in reference.cells.encoders:
        return reference.cells.observed[reference.cells.encoders.index(encoder)]
    return np.ones(len(reference.datasets), bool)


def _stand(
    cells: Cells, reference: Reference, scope_name: str, which: Bools, *, ranked: bool
) -> _Standing:
    """Score the encoders `which` (K,) in one scope."""
    scope = reference.scopes[scope_name]
    raw, used = cells.on(scope_name)
    encoders = tuple(np.array(cells.encoders, object)[which])
    own = np.array([_place(encoder, scope.members) for encoder in encoders], np.int64)
    scores = score(raw[which], scope.axes, within=scope.anchors, own=own, weights=reference.weights)
    return _Standing(
        reference, scope, ranked, cells.datasets, encoders, raw[which], used[which], scores
    )


def _place(encoder: str, members: Sequence[str]) -> int:
    return members.index(encoder) if encoder in members else -1


def _rows(standing: _Standing, labels: Mapping[str, Member]) -> Iterator[dict[str, Any]]:
    scores, reference = standing.scores, standing.reference
    for place, encoder in enumerate(standing.encoders):
        datasets = np.array(standing.datasets)[standing.used[place]].tolist()
        raw = standing.raw[place] * (1.0 if reference.units == RAW else np.nan)
        numbers = {name: getattr(scores, name)[place] for name in ("crs", *COMPONENTS)}
        numbers |= dict(zip(AXES, scores.normalised[place], strict=True))
        numbers |= {f"raw_{name}": value for name, value in zip(AXES, raw, strict=True)}
        yield {
            "scope": standing.scope.name,
            **labels[encoder]._asdict(),
            **{name: _or_null(value) for name, value in numbers.items()},
            "auroc": _or_null(raw[0]),
            "saturated": _saturated(scores.normalised[place]),
            "n_cells": len(datasets),
            "datasets": ";".join(datasets),
            "reference": reference.name,
            "reference_digest": reference.digest,
            "ranked": standing.ranked,
        }


def _or_null(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _saturated(normalised: Floats) -> str:
    at_anchor = (normalised == 0) | (normalised == 1)
    return ";".join(name for name, is_at in zip(AXES, at_anchor, strict=True) if is_at)


def _ranked(table: pl.DataFrame, encoders: Sequence[str]) -> pl.DataFrame:
    """Add the ranks in each scope and sort by them; ties stand in the encoders' order."""
    scopes = table["scope"].unique(maintain_order=True).to_list()
    ranks = {
        rank: pl.when("ranked").then(name).rank("min", descending=True).over("scope")
        for rank, name in (("rank", "crs"), ("auroc_rank", "auroc"))
    }
    order = [
        pl.col("scope").replace_strict(scopes, range(len(scopes)), return_dtype=pl.Int64),
        pl.col("rank"),
        pl.col("encoder").replace_strict(encoders, range(len(encoders)), return_dtype=pl.Int64),
    ]
    ordered = table.with_columns(**ranks).sort(order, nulls_last=True)
    return ordered.select(pl.col(name).cast(dtype) for name, dtype in CRS_TABLE.items())


def near_ties(
    axes: pl.DataFrame, *, encoders: Sequence[Member], reference: Reference, within: float = 1e-3
) -> pl.DataFrame:
    """List the relations of dominance that a small change of an axis would turn over.

    Parameters
    ----------
    axes, encoders, reference
        As for `crs_table`.
    within
        How much a normalised axis may change.

    Returns
    -------
    pl.DataFrame
        `NEAR_TIES`: encoder, the panel's other member, whether it dominates now, the axis that
        decides, its margin (how far the encoder is above, when it dominates, or below, when it
        does not), and what CRS the encoder would lose or gain.
    """
    rows = [
        row
        for standing in _standings(axes, encoders, reference)
        if not standing.scope.undefined
        for row in _ties(standing, within)
    ]
    return pl.DataFrame(rows, schema=NEAR_TIES, orient="row")


def _ties(standing: _Standing, within: float) -> Iterator[tuple[Any, ...]]:
    scope = standing.scope
    mine, theirs = standing.scores.normalised, normalise(scope.axes, scope.anchors)
    relation = dominates(mine, theirs)
    for i, encoder in enumerate(standing.encoders):
        n_others = len(scope.members) - (encoder in scope.members)
        step = standing.reference.weights.components[0] / n_others
        for j, other in enumerate(scope.members):
            lead = mine[i] - theirs[j]
            axis = int(lead.argmin())
            if encoder != other and abs(lead[axis]) < within:
                change = -step if relation[i, j] else step
                yield (
                    *(scope.name, encoder, other, bool(relation[i, j])),
                    *(AXES[axis], float(abs(lead[axis])), change),
                )


def crs_notes(
    axes: pl.DataFrame,
    *,
    encoders: Sequence[Member],
    reference: Reference,
    previous: Reference | None = None,
) -> pl.DataFrame:
    """Say what a reader of the CRS table has to know beside it.

    Parameters
    ----------
    axes, encoders, reference
        As for `crs_table`; a column ``reason`` of `axes` explains undefined axes.
    previous
        The cohort of an earlier run, to say which anchors moved since.

    Returns
    -------
    pl.DataFrame
        `NOTES`, of these kinds: ``undefined scope``, ``undefined cell``, ``missing cells``,
        ``restricted``, ``changed member``, ``saturation``, ``anchor moved``.
    """
    standings = list(_standings(axes, encoders, reference))
    moved = [] if previous is None else _moved_anchors(previous, reference)
    notes = [
        *_undefined_scopes(standings),
        *_undefined_cells(axes),
        *_members_with_missing_cells(standings[0]),
        *_restrictions(standings),
        *_changed_members(standings),
        *_saturation(standings),
        *moved,
    ]
    return pl.DataFrame(notes, schema=NOTES, orient="row")


Note = tuple[str, str, str]


def _undefined_scopes(standings: Sequence[_Standing]) -> Iterator[Note]:
    for standing in standings:
        if standing.scope.undefined:
            yield (
                *(standing.scope.name, "undefined scope"),
                f"no scores: {standing.scope.undefined}",
            )


def _undefined_cells(axes: pl.DataFrame) -> Iterator[Note]:
    for row in axes.iter_rows(named=True):
        undefined = [name for name in AXES if row[name] is None or not np.isfinite(row[name])]
        if undefined:
            reason = row.get("reason") or f"{', '.join(undefined)} undefined"
            yield row["dataset"], "undefined cell", f"{row['encoder']} is left out: {reason}"


def _members_with_missing_cells(standing: _Standing) -> Iterator[Note]:
    """Name the members that lack cells, and the anchors of the aggregate that they set."""
    scope, cells = standing.scope, standing.reference.cells
    for encoder, axes, observed in zip(scope.members, scope.axes, cells.observed, strict=True):
        if not observed.all():
            ends = ((scope.anchors.lower, "lower"), (scope.anchors.upper, "upper"))
            at = [
                f"the {end} anchor of {name}"
                for values, end in ends
                for name, value, anchor in zip(AXES, axes, values, strict=True)
                if value == anchor
            ]
            sets = f"sets {', '.join(at)}" if at else "sets no anchor"
            share = f"{observed.sum()} of {len(observed)} datasets"
            yield scope.name, "missing cells", f"{encoder} has {share} and {sets}"


def _restrictions(standings: Sequence[_Standing]) -> Iterator[Note]:
    for standing in standings:
        if standing.reference.restricted_from and standing.scope.name == AGGREGATE:
            who = "all encoders" if standing.ranked else ", ".join(standing.encoders)
            yield (
                *(AGGREGATE, "restricted"),
                f"{who}: scored against {standing.reference.name}, a part of "
                f"{standing.reference.restricted_from}"
                + ("" if standing.ranked else "; not ranked"),
            )


def _changed_members(standings: Sequence[_Standing]) -> Iterator[Note]:
    """Name the members whose axes in this run are not those of the reference."""
    for standing in standings:
        for encoder, raw in zip(standing.encoders, standing.raw, strict=True):
            place = _place(encoder, standing.scope.members)
            difference = np.abs(raw - standing.scope.axes[place]) if place >= 0 else np.zeros(1)
            if difference.max() > 0:
                yield (
                    *(standing.scope.name, "changed member"),
                    f"{encoder} is scored with this run's axes, which differ from the reference's "
                    f"by up to {difference.max():.2g}",
                )


def _saturation(standings: Sequence[_Standing]) -> Iterator[Note]:
    """Count the encoders beyond each anchor; more than one asks for a successor."""
    for standing in standings:
        anchors = standing.scope.anchors
        beyond = {"lower": standing.raw < anchors.lower, "upper": standing.raw > anchors.upper}
        for end, outside in beyond.items():
            for name, count in zip(AXES, outside.sum(axis=0), strict=True):
                if count:
                    advice = "; repeated: a successor reference is advised" if count > 1 else ""
                    yield (
                        *(standing.scope.name, "saturation"),
                        f"{count} beyond the {end} anchor of {name}{advice}",
                    )


def _moved_anchors(previous: Reference, reference: Reference) -> Iterator[Note]:
    for row in anchor_moves(previous, reference).iter_rows(named=True):
        yield (
            *(row["scope"], "anchor moved"),
            f"{row['anchor']} anchor of {row['axis']}: {row['before']:.6g} to {row['after']:.6g} "
            f"({row['share_of_width']:+.1%} of the earlier width), now set by {row['set_by']}",
        )
