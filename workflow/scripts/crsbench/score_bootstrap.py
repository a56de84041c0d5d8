"""CRS over replicates of a panel's axes, and what they say about scores and ranks.

Law: a replicate is a whole panel of raw axes. In the *recomputed* variant its anchors are its
own, so that an interval describes the whole scoring procedure and need not be centred on the
point estimate; in the *fixed* variant the anchors are those of the point estimate, while
dominance is among the replicate's members in both. A replicate with an undefined axis, or with an
axis of zero width (recomputed), is undefined for the whole panel: left out, and counted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from crsbench.arrays import Floats, Integers
from crsbench.cell_arrays import why_no_crs
from crsbench.crs import (
    AXES,
    Weights,
    replicate_anchors,
    score,
    score_cohort,
)
from crsbench.rankings import descending_order
from crsbench.resampling import (
    Replicates,
    basic_interval,
    differences,
    leading_tier,
    mean,
    percentile_interval,
    rank_probabilities,
    unresolved_from,
)

_HEAD = {"resampled": pl.String(), "anchors": pl.String()}
_COUNTS = {"n_replicates": pl.Int64(), "n_undefined": pl.Int64(), "reason": pl.String()}
_INTERVAL = ("mean", "bias", "percentile_low", "percentile_high", "basic_low", "basic_high")

INTERVALS = pl.Schema(
    _HEAD
    | {"encoder": pl.String(), "point": pl.Float64()}
    | dict.fromkeys(_INTERVAL, pl.Float64())
    | _COUNTS
)
AXIS_INTERVALS = pl.Schema(
    {"resampled": pl.String(), "axis": pl.String()}
    | {"encoder": pl.String(), "point": pl.Float64()}
    | dict.fromkeys(_INTERVAL, pl.Float64())
    | _COUNTS
)
RANKS = pl.Schema(
    _HEAD
    | {"encoder": pl.String(), "rank": pl.Int64()}
    | dict.fromkeys(("probability", "probability_at_most"), pl.Float64())
    | _COUNTS
)
DIFFERENCES = pl.Schema(
    _HEAD
    | {"encoder": pl.String(), "other": pl.String(), "point": pl.Float64()}
    | dict.fromkeys(_INTERVAL, pl.Float64())
    | {"probability_above": pl.Float64(), "resolved": pl.Boolean()}
    | _COUNTS
)
_TIER = {
    "in_leading_tier": pl.Boolean(),
    "unresolved_from_leader": pl.Boolean(),
    "leader": pl.String(),
    "tier_size": pl.Int64(),
    "tier_share": pl.Float64(),
}
TIERS = pl.Schema(_HEAD | {"encoder": pl.String()} | _TIER | _COUNTS)


@dataclass(frozen=True)
class ScoreReplicates:
    """The CRS of a panel, and its replicates under recomputed and under fixed anchors.

    Attributes
    ----------
    resampled
        What was resampled: the name of the interval in every table.
    encoders, point
        The K encoders in the panel's order, and their CRS, shape (K,).
    recomputed, fixed
        Replicates of CRS, shape (R, K).
    point_axes, axes
        The panel's raw axes, shape (K, 4), and their replicates, shape (R, K, 4).
    reason
        Why no replicate says anything, or None.
    """

    resampled: str
    encoders: tuple[str, ...]
    point: Floats
    recomputed: Replicates
    fixed: Replicates
    point_axes: Floats
    axes: Floats
    reason: str | None = None

    def variants(self) -> Iterator[tuple[dict[str, object], Replicates]]:
        """Yield the leading and closing cells of a table's rows, and the replicates of each."""
        for anchors, replicates in (("recomputed", self.recomputed), ("fixed", self.fixed)):
            yield self._counts(replicates) | {"anchors": anchors}, replicates

    def by_axis(self) -> Iterator[tuple[dict[str, object], Floats, Replicates]]:
        """Yield the same cells, the point estimates (K,) and the replicates of each raw axis."""
        for place, name in enumerate(AXES):
            replicates = Replicates(self.axes[..., place], self.recomputed.multiplicity)
            yield self._counts(replicates) | {"axis": name}, self.point_axes[:, place], replicates

    def _counts(self, replicates: Replicates) -> dict[str, object]:
        n_undefined = replicates.n_undefined
        none_left = n_undefined == replicates.n_replicates
        return {
            "resampled": self.resampled,
            "n_replicates": replicates.n_replicates,
            "n_undefined": n_undefined,
            "reason": self.reason or ("no replicate is defined" if none_left else None),
        }


def score_replicates(
    axes: Floats,
    multiplicity: Integers,
    *,
    point_axes: Floats,
    encoders: Sequence[str],
    resampled: str,
    weights: Weights,
) -> ScoreReplicates:
    """Score every replicate of a panel.

    Parameters
    ----------
    axes
        Raw axes of distinct replicates, shape (R, K, 4); NaN where undefined.
    multiplicity
        How often each replicate occurs, shape (R,).
    point_axes, encoders
        The panel itself, shape (K, 4), and its names in the order that breaks ties.
    resampled
        What was resampled.
    """
    if reason := why_no_crs(point_axes, encoders):
        return _without_crs(axes, multiplicity, point_axes, encoders, resampled, reason)
    within = replicate_anchors(point_axes)
    own = np.arange(len(encoders))
    return ScoreReplicates(
        resampled,
        tuple(encoders),
        score_cohort(point_axes, weights=weights).crs,
        Replicates(score_cohort(axes, weights=weights).crs, multiplicity),
        Replicates(score(axes, axes, within=within, own=own, weights=weights).crs, multiplicity),
        point_axes,
        axes,
    )


def _without_crs(
    axes: Floats,
    multiplicity: Integers,
    point_axes: Floats,
    encoders: Sequence[str],
    resampled: str,
    reason: str,
) -> ScoreReplicates:
    nothing = Replicates(np.full(axes.shape[:2], np.nan), multiplicity)
    point = np.full(len(encoders), np.nan)
    names = tuple(encoders)
    return ScoreReplicates(
        resampled, names, point, nothing, nothing, point_axes, np.full_like(axes, np.nan), reason
    )


def withheld(replicates: ScoreReplicates, reason: str) -> ScoreReplicates:
    """Return the same panel with every replicate undefined, for a stated reason."""
    return replace(
        replicates,
        recomputed=_undefined(replicates.recomputed),
        fixed=_undefined(replicates.fixed),
        axes=np.full_like(replicates.axes, np.nan),
        reason=reason,
    )


def _undefined(replicates: Replicates) -> Replicates:
    return Replicates(np.full_like(replicates.statistic, np.nan), replicates.multiplicity)


def interval_table(scores: ScoreReplicates, *, level: float = 0.95) -> pl.DataFrame:
    """Return point, mean, bias (mean less point) and intervals of each CRS (`INTERVALS`)."""
    tables = []
    for cells, replicates in scores.variants():
        columns = _interval_columns(replicates, scores.point, level)
        columns |= {"encoder": list(scores.encoders), "point": scores.point}
        tables.append(_with_cells(columns, cells, INTERVALS))
    return pl.concat(tables)


def axis_table(scores: ScoreReplicates, *, level: float = 0.95) -> pl.DataFrame:
    """Return point, mean, bias and intervals of each raw aggregate axis (`AXIS_INTERVALS`)."""
    tables = []
    for cells, point, replicates in scores.by_axis():
        columns = _interval_columns(replicates, point, level)
        columns |= {"encoder": list(scores.encoders), "point": point}
        tables.append(_with_cells(columns, cells, AXIS_INTERVALS))
    return pl.concat(tables)


def _interval_columns(replicates: Replicates, point: Floats, level: float) -> dict[str, object]:
    average = mean(replicates)
    percentile = percentile_interval(replicates, level=level)
    basic = basic_interval(percentile, point)
    values = (average, average - point, *percentile, *basic)
    return dict(zip(_INTERVAL, values, strict=True))


def _with_cells(
    columns: dict[str, object], cells: dict[str, object], schema: pl.Schema
) -> pl.DataFrame:
    """Return columns and the cells that all rows share as a table; NaN becomes null."""
    shared = [pl.lit(value, schema[name]).alias(name) for name, value in cells.items()]
    table = pl.DataFrame(columns).with_columns(shared).select(schema.names())
    return table.cast(schema).fill_nan(None)


def rank_table(scores: ScoreReplicates) -> pl.DataFrame:
    """Return P(rank = r) and P(rank <= r) of each encoder and rank (`RANKS`).

    Encoders tied in a replicate share the mass of their ranks.
    """
    n = len(scores.encoders)
    tables = []
    for cells, replicates in scores.variants():
        probability = rank_probabilities(replicates)
        columns: dict[str, object] = {
            "encoder": np.repeat(scores.encoders, n),
            "rank": np.tile(np.arange(1, n + 1), n),
            "probability": probability.ravel(),
            "probability_at_most": probability.cumsum(axis=1).ravel(),
        }
        tables.append(_with_cells(columns, cells, RANKS))
    return pl.concat(tables)


def difference_table(scores: ScoreReplicates, *, level: float = 0.95) -> pl.DataFrame:
    """Return the paired difference of each two encoders, better point first (`DIFFERENCES`).

    A difference is resolved when its percentile interval leaves out zero.
    """
    order = descending_order(scores.point)
    encoders = np.array(scores.encoders)[order]
    tables = []
    for cells, replicates in scores.variants():
        ordered = Replicates(replicates.statistic[:, order], replicates.multiplicity)
        first, second, paired = differences(ordered)
        point = scores.point[order][first] - scores.point[order][second]
        above = Replicates(
            np.where(np.isnan(paired.statistic), np.nan, paired.statistic > 0), paired.multiplicity
        )
        columns: dict[str, object] = {
            "encoder": encoders[first],
            "other": encoders[second],
            "point": point,
        }
        columns |= _interval_columns(paired, point, level)
        columns |= {"probability_above": mean(above), "resolved": _resolved(columns)}
        tables.append(_with_cells(columns, cells, DIFFERENCES))
    return pl.concat(tables)


def _resolved(interval: Mapping[str, Any]) -> list[bool | None]:
    bounds = zip(interval["percentile_low"], interval["percentile_high"], strict=True)
    return [None if np.isnan(low) else bool(low > 0 or high < 0) for low, high in bounds]


def tier_table(scores: ScoreReplicates, *, level: float = 0.95) -> pl.DataFrame:
    """Return who is in the leading tier, and who is not resolved from the leader (`TIERS`).

    The leader has the highest CRS, and counts as not resolved from itself.
    """
    leader = int(descending_order(scores.point)[0]) if len(scores.encoders) else -1
    tables = []
    for cells, replicates in scores.variants():
        tier = leading_tier(replicates, level=level)
        columns: dict[str, object] = {"encoder": list(scores.encoders)}
        if tier is None:
            cells |= dict.fromkeys(_TIER)
        else:
            columns["in_leading_tier"] = tier.members
            columns["unresolved_from_leader"] = unresolved_from(replicates, leader, level=level)
            cells |= {
                "leader": scores.encoders[leader],
                "tier_size": int(tier.members.sum()),
                "tier_share": tier.share,
            }
        tables.append(_with_cells(columns, cells, TIERS))
    return pl.concat(tables)
