"""References: the panel, the anchors and the weights that a score is relative to.

Law: a reference never changes. Its digest covers all of its content, a file of it is never
overwritten (`crsbench.reference_files`), and a part of it has its own name and digest. A
candidate's axes enter nothing but the candidate's own score, so that scores which stand are the
same to the last bit. The cohort of a run is a reference like any other, except that nobody froze
it.

A reference has scopes: ``aggregate``, on the mean over each member's observed datasets, and one
per dataset, with its own panel and anchors. A cell with an undefined axis is not observed.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from crsbench.crs import (
    AXES,
    COMPONENTS,
    Anchors,
    Bools,
    Floats,
    Weights,
    aggregate,
    anchors,
    replicate_anchors,
    why_undefined,
)
from crsbench.digests import digest
from crsbench.errors import CrsBenchError

AGGREGATE = "aggregate"
RAW, NORMALISED = "raw", "normalised"
#: Of `content_of`, and so of a reference's file.
FORMAT = 1
_COLUMNS = ("encoder", "dataset", *AXES)


class Member(NamedTuple):
    """An encoder, the label that tables and figures show, and its group."""

    encoder: str
    label: str
    group: str


class Cells(NamedTuple):
    """Raw axes by encoder and dataset: `values` (K, D, 4), `present` (K, D).

    A cell is present when it stands in the table, and observed when its four axes are defined.
    """

    encoders: tuple[str, ...]
    datasets: tuple[str, ...]
    values: Floats
    present: Bools

    @property
    def observed(self) -> Bools:
        """Whether all four axes of the cell are defined, shape (K, D)."""
        return np.logical_and.reduce(np.isfinite(self.values), axis=-1)

    def select(self, encoders: Sequence[str], datasets: Sequence[str]) -> "Cells":
        """Return the cells of some encoders and datasets, in the order given."""
        rows = [self.encoders.index(encoder) for encoder in encoders]
        columns = [self.datasets.index(dataset) for dataset in datasets]
        part = np.ix_(rows, columns)
        return Cells(tuple(encoders), tuple(datasets), self.values[part], self.present[part])

    def on(self, scope: str) -> tuple[Floats, Bools]:
        """Return the axes (K, 4) in a scope, NaN where not observed, and the cells used (K, D)."""
        used = self.observed
        if scope != AGGREGATE:
            used = used & (np.array(self.datasets) == scope)
        return aggregate(self.values, used), used


def tabulate_cells(axes: pl.DataFrame) -> Cells:
    """Arrange a table of axes by encoder and dataset, each in order of first appearance.

    Parameters
    ----------
    axes
        Columns encoder, dataset and the four axes, one row per cell.

    Raises
    ------
    CrsBenchError
        For a missing column, a column that is no number, or a cell that stands twice.
    """
    _check_columns(axes)
    encoders = tuple(axes["encoder"].unique(maintain_order=True))
    datasets = tuple(axes["dataset"].unique(maintain_order=True))
    values = np.full((len(encoders), len(datasets), len(AXES)), np.nan)
    present = np.zeros(values.shape[:2], bool)
    for encoder, dataset, *row in axes.select(_COLUMNS).iter_rows():
        place = encoders.index(encoder), datasets.index(dataset)
        if present[place]:
            raise CrsBenchError(f"axes: encoder {encoder} stands twice on {dataset}")
        present[place] = True
        values[place] = [np.nan if value is None else value for value in row]
    return Cells(encoders, datasets, values, present)


def _check_columns(axes: pl.DataFrame) -> None:
    missing = [name for name in _COLUMNS if name not in axes.columns]
    if missing:
        raise CrsBenchError(
            f"axes: column {', '.join(missing)} missing; needed: {', '.join(_COLUMNS)}"
        )
    for name in AXES:
        if not (axes.schema[name].is_numeric() or axes.schema[name] == pl.Null):
            raise CrsBenchError(f"axes: column {name} has type {axes.schema[name]}, not numbers")


@dataclass(frozen=True, eq=False)
class Scope:
    """One panel of a reference: its members, their raw axes (M, 4) and the anchors (4,).

    `undefined` says why the scope has no scores; it is None where it has.
    """

    name: str
    members: tuple[str, ...]
    axes: Floats
    anchors: Anchors
    undefined: str | None


@dataclass(frozen=True, eq=False)
class Reference:
    """What a score is relative to: a `cohort_reference`, or one that was read from a file.

    Parameters
    ----------
    name
        The name that every row of a CRS table carries.
    units
        ``raw``, or ``normalised`` where only axes already on the anchors' scale were published.
    run
        The run that the axes come from.
    restricted_from
        Name and digest of the reference that this is a part of; empty for a whole one.
    panel
        The members, in their order.
    cells
        The members' axes. A reference in normalised units has the one dataset ``aggregate``.
    anchors
        The anchors of each scope.
    weights
        Component and axis weights.
    """

    name: str
    units: str
    run: str
    restricted_from: str
    panel: tuple[Member, ...]
    cells: Cells
    anchors: Mapping[str, Anchors]
    weights: Weights

    @property
    def datasets(self) -> tuple[str, ...]:
        """The datasets of the reference."""
        return self.cells.datasets

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the whole content."""
        return digest(json.dumps(content_of(self), sort_keys=True, allow_nan=False))

    @cached_property
    def scopes(self) -> Mapping[str, Scope]:
        """The scopes by name, the aggregate first."""
        return {name: self._scope(name) for name in self.anchors}

    def _scope(self, name: str) -> Scope:
        values, used = self.cells.on(name)
        inside = used.any(axis=1)
        members = tuple(np.array(self.cells.encoders, object)[inside])
        within = self.anchors[name]
        return Scope(name, members, values[inside], within, why_undefined(within, members))

    def restrict(self, datasets: Iterable[str]) -> "Reference":
        """Return the reference on some of its datasets, with its own name and digest.

        Members without a cell there leave the panel. The anchors of a dataset stay; those of
        the aggregate are taken anew over the members that stay.

        Raises
        ------
        CrsBenchError
            For no dataset, for one that the reference lacks, and in normalised units.
        """
        wanted = set(datasets)
        if wanted == set(self.datasets):
            return self
        kept = tuple(dataset for dataset in self.datasets if dataset in wanted)
        self._check_restriction(wanted, kept)
        observed = self.cells.select(self.cells.encoders, kept).observed
        panel = tuple(self.panel[place] for place in np.flatnonzero(observed.any(axis=1)))
        cells = self.cells.select([member.encoder for member in panel], kept)
        aggregated = replicate_anchors(cells.on(AGGREGATE)[0])
        return replace(
            self,
            name=f"{self.name}[{'+'.join(kept)}]",
            restricted_from=f"{self.name} {self.digest}",
            panel=panel,
            cells=cells,
            anchors={AGGREGATE: aggregated} | {name: self.anchors[name] for name in kept},
        )

    def _check_restriction(self, wanted: set[str], kept: tuple[str, ...]) -> None:
        if self.units == NORMALISED:
            raise CrsBenchError(
                f"reference {self.name}: its axes are published normalised and aggregated only; "
                "it cannot be restricted to datasets"
            )
        unknown = sorted(wanted - set(self.datasets))
        if unknown or not kept:
            raise CrsBenchError(
                f"reference {self.name} has no dataset {', '.join(unknown) or '(none given)'}; "
                f"it has {', '.join(self.datasets)}; score on those, or use another reference"
            )


def cohort_reference(
    axes: pl.DataFrame,
    *,
    encoders: Sequence[Member],
    weights: Weights,
    name: str = "cohort",
    run: str = "",
) -> Reference:
    """Return the reference whose panel are the encoders of a run.

    Parameters
    ----------
    axes
        The run's axes: encoder, dataset and the four axes, one row per cell.
    encoders
        The encoders of the run, in the order that breaks ties; one without a defined cell is no
        member.
    weights
        Component and axis weights.
    name, run
        What to call the reference, and the run that the axes come from.

    Notes
    -----
    A scope whose panel cannot be scored (fewer than two members, an axis of zero width) says so
    in `Scope.undefined`; the others keep their scores.
    """
    cells = tabulate_cells(axes)
    check_encoders(cells, encoders)
    inside = {
        encoder for encoder, row in zip(cells.encoders, cells.observed, strict=True) if row.any()
    }
    panel = tuple(member for member in encoders if member.encoder in inside)
    cells = cells.select([member.encoder for member in panel], cells.datasets)
    of_scope = {}
    for scope in (AGGREGATE, *cells.datasets):
        values, used = cells.on(scope)
        of_scope[scope] = anchors(values[used.any(axis=1)])
    return Reference(name, RAW, run, "", panel, cells, of_scope, weights)


def check_encoders(cells: Cells, encoders: Sequence[Member]) -> None:
    """Raise unless the encoders are named once each and cover those of the axes."""
    names = [member.encoder for member in encoders]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise CrsBenchError(f"encoders: {', '.join(repeated)} named twice")
    unknown = sorted(set(cells.encoders) - set(names))
    if unknown:
        raise CrsBenchError(
            f"axes: encoder {', '.join(unknown)} is none of the run's: {', '.join(names)}"
        )


def content_of(reference: Reference) -> dict[str, Any]:
    """Return all of a reference that its digest covers, as JSON values."""
    cells = reference.cells
    return {
        "format": FORMAT,
        "name": reference.name,
        "units": reference.units,
        "run": reference.run,
        "restricted_from": reference.restricted_from,
        "panel": [member._asdict() for member in reference.panel],
        "datasets": list(cells.datasets),
        "axes": [
            {"encoder": encoder, "dataset": dataset} | _by_axis(cells.values[row, column])
            for row, encoder in enumerate(cells.encoders)
            for column, dataset in enumerate(cells.datasets)
            if cells.observed[row, column]
        ],
        "anchors": {
            scope: {"lower": _by_axis(anchors.lower), "upper": _by_axis(anchors.upper)}
            for scope, anchors in reference.anchors.items()
        },
        "weights": {
            "components": dict(zip(COMPONENTS, reference.weights.components, strict=True)),
            "axes": dict(zip(AXES, reference.weights.axes, strict=True)),
        },
    }


def _by_axis(values: Floats) -> dict[str, float | None]:
    numbers = [None if math.isnan(value) else value for value in values.tolist()]
    return dict(zip(AXES, numbers, strict=True))


ANCHOR_MOVES = pl.Schema(
    {
        "scope": pl.String(),
        "axis": pl.String(),
        "anchor": pl.String(),
        "before": pl.Float64(),
        "after": pl.Float64(),
        "moved": pl.Float64(),
        "share_of_width": pl.Float64(),
        "set_by": pl.String(),
    }
)


def anchor_moves(before: Reference, after: Reference) -> pl.DataFrame:
    """List the anchors that differ between two references, and by how much.

    Returns
    -------
    pl.DataFrame
        `ANCHOR_MOVES`: one row per anchor that moved in a scope that both have. `share_of_width`
        is the move relative to the earlier distance between the two anchors; `set_by` names the
        members that stand at the new anchor.
    """
    rows = []
    for name, earlier in before.scopes.items():
        if name in after.scopes and not (earlier.undefined or after.scopes[name].undefined):
            rows += _moves(earlier, after.scopes[name])
    return pl.DataFrame(rows, schema=ANCHOR_MOVES, orient="row")


def _moves(before: Scope, after: Scope) -> list[tuple[Any, ...]]:
    widths = before.anchors.upper - before.anchors.lower
    rows = []
    for axis, name in enumerate(AXES):
        for end in ("lower", "upper"):
            was = float(getattr(before.anchors, end)[axis])
            now = float(getattr(after.anchors, end)[axis])
            if was != now:
                at = [
                    m for m, row in zip(after.members, after.axes, strict=True) if row[axis] == now
                ]
                share = (now - was) / float(widths[axis])
                rows.append((after.name, name, end, was, now, now - was, share, ";".join(at)))
    return rows
