"""Stability of the criterion: other panels, later insertions, other weights.

Law: everything here starts from one panel of axes, shape (K, 4), raw or normalised (anchors and
dominance are recomputed, so both give the same), and compares rankings on the encoders that both
have. Tables are tidy whatever the panel's size; what is undefined is null, and `reason` says why.
Sets of encoders are written as their names joined by "; ".
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import polars as pl

from crsbench.arrays import Floats, Integers
from crsbench.cell_arrays import why_no_crs
from crsbench.crs import (
    AXES,
    COMPONENTS,
    Weights,
    combine,
    ideal_point,
    replicate_anchors,
    score,
    score_cohort,
)
from crsbench.rankings import kendall_tau_b, top_k_overlap

TOP = 3
#: Panels of one size beyond this number are drawn only, not enumerated.
MOST_ENUMERATED_PANELS = 20_000

PANELS = pl.Schema(
    {
        "kind": pl.String(),
        "size": pl.Int64(),
        "panel": pl.Int64(),
        "left_out": pl.String(),
        "tau_b": pl.Float64(),
        "top3_overlap": pl.Float64(),
        "reason": pl.String(),
    }
)
INSERTIONS = pl.Schema(
    {
        "trial": pl.Int64(),
        "step": pl.Int64(),
        "n_existing": pl.Int64(),
        "inserted": pl.String(),
        "cumulative": pl.Float64(),
        "single": pl.Float64(),
        "fixed_reference": pl.Float64(),
        "reason": pl.String(),
    }
)
WEIGHT_DRAWS = pl.Schema(
    {"family": pl.String(), "draw": pl.Int64()}
    | dict.fromkeys((*COMPONENTS, *AXES), pl.Float64())
    | {"tau_b": pl.Float64(), "top3_overlap": pl.Float64(), "reason": pl.String()}
)


def panels(
    axes: Floats,
    encoders: Sequence[str],
    *,
    generator: np.random.Generator,
    sizes: Sequence[int],
    n_draws: int,
    weights: Weights,
) -> pl.DataFrame:
    """Compare CRS on smaller panels with CRS on the whole panel (paper, section 5.2).

    Parameters
    ----------
    axes, encoders
        The panel, shape (K, 4), and its K names.
    generator
        Draws the random panels, each independently of the others.
    sizes
        Sizes of the random panels; all panels of that size are enumerated, too.
    n_draws
        Random panels of each size.

    Returns
    -------
    `PANELS`: kind is ``leave_one_out``, ``drawn`` or ``enumerated``; Kendall's tau-b and the
    overlap of the top three, each between the subset's CRS and the whole panel's on the subset's
    members.
    """
    if reason := why_no_crs(axes, encoders):
        return pl.DataFrame([{"reason": reason}], schema=PANELS)
    n = len(encoders)
    tables = [_compare_panels("leave_one_out", axes, encoders, _all_panels(n, n - 1), weights)]
    for size in sizes:
        if not 2 <= size < n:
            tables.append(_undefined_panels("drawn", size, n))
            continue
        drawn = np.array([np.sort(generator.permutation(n)[:size]) for _ in range(n_draws)])
        tables.append(_compare_panels("drawn", axes, encoders, drawn, weights))
        tables.append(_enumerated(axes, encoders, size, weights))
    return pl.concat(tables)


def _all_panels(n_encoders: int, size: int) -> Integers:
    return np.array(list(combinations(range(n_encoders), size)))


def _enumerated(axes: Floats, encoders: Sequence[str], size: int, weights: Weights) -> pl.DataFrame:
    n_panels = math.comb(len(encoders), size)
    if n_panels > MOST_ENUMERATED_PANELS:
        reason = f"{n_panels} panels, more than the {MOST_ENUMERATED_PANELS} that are enumerated"
        return pl.DataFrame([{"kind": "enumerated", "size": size, "reason": reason}], schema=PANELS)
    members = _all_panels(len(encoders), size)
    return _compare_panels("enumerated", axes, encoders, members, weights)


def _undefined_panels(kind: str, size: int, n_encoders: int) -> pl.DataFrame:
    reason = f"panels of {size} need more than {size} encoders (at least 2); there are {n_encoders}"
    return pl.DataFrame([{"kind": kind, "size": size, "reason": reason}], schema=PANELS)


def _compare_panels(
    kind: str, axes: Floats, encoders: Sequence[str], members: Integers, weights: Weights
) -> pl.DataFrame:
    """Compare many panels of one size, members (P, size), with the whole panel."""
    whole = score_cohort(axes, weights=weights).crs[members]
    subset = score_cohort(axes[members], weights=weights).crs
    tau_b, overlap = kendall_tau_b(whole, subset), top_k_overlap(whole, subset, k=TOP)
    everyone = set(range(len(encoders)))
    columns = {
        "kind": [kind] * len(members),
        "size": [members.shape[1]] * len(members),
        "panel": range(len(members)),
        "left_out": [_names(encoders, sorted(everyone - set(row))) for row in members.tolist()],
        "tau_b": tau_b,
        "top3_overlap": overlap,
        "reason": _reasons(subset, tau_b, overlap),
    }
    return pl.DataFrame(columns, schema=PANELS).fill_nan(None)


def _names(encoders: Sequence[str], places: Sequence[int]) -> str:
    return "; ".join(encoders[place] for place in places)


def _reasons(crs: Floats, tau_b: Floats, overlap: Floats) -> list[str | None]:
    """Say why a comparison is undefined; crs (P, K), the others (P,)."""
    causes = {
        "an anchor of zero width": np.isnan(crs).any(axis=-1),
        "tau-b: all members tied": np.isnan(tau_b),
        f"top {TOP} of {crs.shape[-1]} members is everyone": np.isnan(overlap),
    }
    reasons: Floats = np.select(list(causes.values()), list(causes), default="")
    return [str(reason) or None for reason in reasons]


def insertions(
    axes: Floats,
    encoders: Sequence[str],
    *,
    generator: np.random.Generator,
    n_trials: int,
    weights: Weights,
    n_inserted: int = 3,
) -> pl.DataFrame:
    """Insert encoders one after the other into a smaller panel (paper, section 5.2).

    Parameters
    ----------
    axes, encoders
        The panel, shape (K, 4), and its K names.
    generator
        Draws the order of the encoders in each trial; the last `n_inserted` are inserted.

    Returns
    -------
    `INSERTIONS`, one row per insertion. Displacements are the largest over the encoders that
    stood in the panel before the insertion:

    - ``cumulative``: score now less the score when first published, anchors recomputed;
    - ``single``: score now less the score just before this insertion;
    - ``fixed_reference``: as cumulative, but every encoder scored against the initial panel.
    """
    if reason := why_no_crs(axes, encoders):
        return pl.DataFrame([{"reason": reason}], schema=INSERTIONS)
    initial = len(encoders) - n_inserted
    if initial < 2:
        reason = (
            f"{n_inserted} insertions need {n_inserted + 2} encoders; there are {len(encoders)}"
        )
        return pl.DataFrame([{"reason": reason}], schema=INSERTIONS)
    orders = np.array([generator.permutation(len(encoders)) for _ in range(n_trials)])
    steps = _displacements(axes[orders], initial, weights)
    columns = _insertion_columns(orders, encoders, initial)
    columns |= {name: values.ravel() for name, values in steps.items()}
    undefined = np.isnan(steps["cumulative"]).ravel()
    columns["reason"] = ["an anchor of zero width" if each else None for each in undefined]
    return pl.DataFrame(columns, schema=INSERTIONS).fill_nan(None)


def _insertion_columns(
    orders: Integers, encoders: Sequence[str], initial: int
) -> dict[str, object]:
    n_trials, n_inserted = len(orders), orders.shape[1] - initial
    return {
        "trial": np.repeat(np.arange(n_trials), n_inserted),
        "step": np.tile(np.arange(1, n_inserted + 1), n_trials),
        "n_existing": np.tile(np.arange(initial, orders.shape[1]), n_trials),
        "inserted": [encoders[place] for place in orders[:, initial:].ravel().tolist()],
    }


def _displacements(ordered: Floats, initial: int, weights: Weights) -> dict[str, Floats]:
    """Return the displacements of each insertion, shape (T, n_inserted), of axes (T, K, 4)."""
    n = ordered.shape[1]
    published = previous = score_cohort(ordered[:, :initial], weights=weights).crs
    fixed = _against_initial(ordered, initial, weights)
    found: dict[str, list[Floats]] = {"cumulative": [], "single": [], "fixed_reference": []}
    for size in range(initial + 1, n + 1):
        now = score_cohort(ordered[:, :size], weights=weights).crs
        found["cumulative"].append(_largest(now[:, :-1] - published))
        found["single"].append(_largest(now[:, :-1] - previous))
        again = _against_initial(ordered[:, :size], initial, weights)
        found["fixed_reference"].append(_largest(again[:, :-1] - fixed[:, : size - 1]))
        published = np.concatenate([published, now[:, -1:]], axis=1)
        previous = now
    return {name: np.stack(values, axis=1) for name, values in found.items()}


def _against_initial(ordered: Floats, initial: int, weights: Weights) -> Floats:
    """Score encoders (T, K, 4) against the panel of the first `initial` of them."""
    panel = ordered[:, :initial]
    places = np.arange(ordered.shape[1])
    own = np.where(places < initial, places, -1)
    return score(ordered, panel, within=replicate_anchors(panel), own=own, weights=weights).crs


def _largest(displacements: Floats) -> Floats:
    return np.abs(displacements).max(axis=1)


def weight_draws(
    axes: Floats,
    encoders: Sequence[str],
    *,
    generator: np.random.Generator,
    n_draws: int,
    weights: Weights,
    factors: tuple[float, float] = (0.5, 1.5),
    alternatives: Sequence[tuple[float, float, float, float]] = ((0.30, 0.30, 0.15, 0.25),),
) -> pl.DataFrame:
    """Compare CRS under other weights with CRS under the given ones (paper, section 5.3).

    Parameters
    ----------
    axes, encoders
        The panel, shape (K, 4), and its K names.
    generator
        Draws the factors.
    n_draws
        Draws of the axis weights, and as many of the component weights.
    factors
        Each weight is multiplied by a number, uniform between these, then all are renormalised.
    alternatives
        Further axis weights to compare.

    Returns
    -------
    `WEIGHT_DRAWS`: family is ``axes``, ``components`` or ``alternative``.
    """
    if reason := why_no_crs(axes, encoders):
        return pl.DataFrame([{"reason": reason}], schema=WEIGHT_DRAWS)
    by_axis = _renormalised(weights.axes, generator.uniform(*factors, (n_draws, len(AXES))))
    by_component = _renormalised(
        weights.components, generator.uniform(*factors, (n_draws, len(COMPONENTS)))
    )
    others = np.array([replace(weights, axes=given).axes for given in alternatives]).reshape(
        -1, len(AXES)
    )
    families = {
        "axes": (_repeated(weights.components, n_draws), by_axis),
        "components": (by_component, _repeated(weights.axes, n_draws)),
        "alternative": (_repeated(weights.components, len(others)), others),
    }
    return pl.concat(
        _compare_weights(family, axes, *draws, weights) for family, draws in families.items()
    )


def _repeated(weights: Sequence[float], n_draws: int) -> Floats:
    return np.tile(np.array(weights), (n_draws, 1))


def _renormalised(weights: Sequence[float], factors: Floats) -> Floats:
    drawn = np.array(weights) * factors
    return drawn / drawn.sum(axis=1, keepdims=True)


def _compare_weights(
    family: str, axes: Floats, components: Floats, by_axis: Floats, weights: Weights
) -> pl.DataFrame:
    """Compare draws of weights, shapes (R, 3) and (R, 4), with the given ones."""
    scores = score_cohort(axes, weights=weights)
    ideal = ideal_point(scores.normalised, by_axis[:, None])
    crs = combine(scores.dominance, ideal, scores.worst_axis, by=components[:, None])
    given = np.broadcast_to(scores.crs, crs.shape)
    tau_b, overlap = kendall_tau_b(given, crs), top_k_overlap(given, crs, k=TOP)
    columns: dict[str, object] = {"family": [family] * len(crs), "draw": range(len(crs))}
    columns |= dict(zip(COMPONENTS, components.T, strict=True))
    columns |= dict(zip(AXES, by_axis.T, strict=True))
    columns |= {"tau_b": tau_b, "top3_overlap": overlap, "reason": _reasons(crs, tau_b, overlap)}
    return pl.DataFrame(columns, schema=WEIGHT_DRAWS).fill_nan(None)


def summarise_agreement(table: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Summarise tau-b and Top-3 overlap of comparisons, one row per group of the columns `by`."""
    return table.group_by(by, maintain_order=True).agg(
        pl.col("tau_b").count().alias("n"),
        *_moments("tau_b"),
        *_moments("top3_overlap"),
        pl.col("reason").drop_nulls().first(),
    )


def _moments(column: str) -> Iterator[pl.Expr]:
    yield pl.col(column).mean().alias(f"{column}_mean")
    yield pl.col(column).std().alias(f"{column}_sd")
    yield pl.col(column).min().alias(f"{column}_min")
