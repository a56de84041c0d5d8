"""The composite reliability score (CRS) of encoders relative to a panel, on arrays.

Law: an axis is a number for which higher is better; the last dimension of every array of axes
holds `AXES` in that order, the one before it the encoders, any before that replicates. Nothing
is rounded before it is compared, and no result depends on what else stands in the batch: sums
run over the axes in their order. NaN means undefined and spreads to what depends on it.

    s_a = clip((x_a - l_a) / (u_a - l_a), 0, 1)     l, u = lowest and highest of the panel
    D   = share of the panel's other members that are Pareto-dominated
    S   = 1 - sum_a w_a (1 - s_a)^2                 no square root: the published table has none
    W   = min_a s_a
    CRS = 0.60 D + 0.25 S + 0.15 W
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from crsbench.arrays import Bools, Floats
from crsbench.errors import CrsBenchError

AXES = ("discrimination", "calibration", "label_efficiency", "robustness")
COMPONENTS = ("dominance", "ideal_point", "worst_axis")


@dataclass(frozen=True)
class Weights:
    """The weights of the three components and, inside the ideal point, of the four axes.

    Parameters
    ----------
    components
        Weights of `COMPONENTS`.
    axes
        Weights of `AXES`.

    Raises
    ------
    CrsBenchError
        When a weight is negative or not finite, or when a group does not sum to one.
    """

    components: tuple[float, float, float]
    axes: tuple[float, float, float, float]

    def __post_init__(self) -> None:
        _check_weights("component", self.components, COMPONENTS)
        _check_weights("axis", self.axes, AXES)

    @classmethod
    def named(cls, weights: Mapping[str, Mapping[str, float]]) -> Self:
        """Take weights by name, ``components`` and ``axes``, as settings and references do."""
        dominance, ideal_point, worst_axis = (weights["components"][name] for name in COMPONENTS)
        a, b, c, d = (weights["axes"][name] for name in AXES)
        return cls((dominance, ideal_point, worst_axis), (a, b, c, d))


def _check_weights(kind: str, weights: Sequence[float], names: Sequence[str]) -> None:
    given = ", ".join(str(weight) for weight in weights)
    if len(weights) != len(names):
        raise CrsBenchError(f"{kind} weights: {len(names)} expected ({', '.join(names)}): {given}")
    if any(not math.isfinite(weight) or weight < 0 for weight in weights):
        raise CrsBenchError(f"{kind} weights must be finite and not negative: {given}")
    if abs(math.fsum(weights) - 1) > 1e-9:
        raise CrsBenchError(f"{kind} weights must sum to 1, not {math.fsum(weights):g}: {given}")


@dataclass(frozen=True, eq=False)
class Anchors:
    """The lowest and the highest value of a panel on each axis, shapes (..., 4)."""

    lower: Floats
    upper: Floats

    @property
    def undefined(self) -> Bools:
        """Whether a panel has an axis of zero width or with a NaN, shape (...)."""
        return ~np.logical_and.reduce(self.upper > self.lower, axis=-1)


@dataclass(frozen=True, eq=False)
class Scores:
    """CRS and its parts: `normalised` (..., K, 4), the rest (..., K); NaN where undefined."""

    crs: Floats
    dominance: Floats
    ideal_point: Floats
    worst_axis: Floats
    normalised: Floats


def check_members(axes: Floats, encoders: Sequence[str]) -> None:
    """Check that the axes of one panel are finite and its members different.

    Parameters
    ----------
    axes
        Raw axes, shape (K, 4); row k belongs to ``encoders[k]``.
    encoders
        The names of the K encoders.

    Raises
    ------
    CrsBenchError
        For a duplicate encoder, and for an axis that is not finite.
    """
    names = list(encoders)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise CrsBenchError(f"encoder named twice in one panel: {', '.join(repeated)}")
    for encoder, row in zip(encoders, axes, strict=True):
        for name, value in zip(AXES, row, strict=True):
            if not np.isfinite(value):
                raise CrsBenchError(f"{encoder}: axis {name} is {value}; a finite number is needed")


def check_panel(axes: Floats, encoders: Sequence[str]) -> None:
    """Check that one panel can be scored: `check_members`, and that it has a CRS.

    Raises
    ------
    CrsBenchError
        As `check_members`, and for what `why_undefined` says.
    """
    check_members(axes, encoders)
    if reason := why_undefined(anchors(axes), encoders):
        raise CrsBenchError(reason)


def why_undefined(within: Anchors, members: Sequence[str]) -> str | None:
    """Say why a panel has no scores on its anchors; None where it has.

    It has none with fewer than two members, and none with an axis of zero width.
    """
    if len(members) < 2:
        return f"a panel needs two encoders or more, not {len(members)}"
    at = {
        name: f"{lower:g}"
        for name, lower, upper in zip(AXES, within.lower, within.upper, strict=True)
        if not upper > lower
    }
    if not at:
        return None
    names, values = ", ".join(at), ", ".join(at.values())
    return f"anchors of {names} have zero width: all members are at {values}"


def anchors(panel: Floats) -> Anchors:
    """Return the anchors of one panel of raw axes, shape (K, 4); NaN for one without members."""
    if len(panel) == 0:
        return Anchors(np.full(len(AXES), np.nan), np.full(len(AXES), np.nan))
    return replicate_anchors(panel)


def replicate_anchors(panels: Floats) -> Anchors:
    """Return the anchors of many panels, shape (..., K, 4); see `Anchors.undefined`."""
    return Anchors(panels.min(axis=-2), panels.max(axis=-2))


def normalise(axes: Floats, within: Anchors) -> Floats:
    """Return axes (..., K, 4) on the anchors' scale, clipped to [0, 1].

    All four axes are NaN where the anchors are undefined: such a panel has no CRS.
    """
    width = np.where(within.undefined[..., None], np.nan, within.upper - within.lower)
    scaled = (axes - within.lower[..., None, :]) / width[..., None, :]
    return np.clip(scaled, 0.0, 1.0)


def dominates(candidates: Floats, panel: Floats) -> Bools:
    """Return whether candidate i Pareto-dominates member j, shape (..., K, M).

    Parameters
    ----------
    candidates, panel
        Normalised axes, shapes (..., K, 4) and (..., M, 4).

    Notes
    -----
    At least as high on all four axes and higher on one, compared exactly.
    """
    pairs = np.broadcast_shapes(candidates.shape[:-2], panel.shape[:-2])
    shape = (*pairs, candidates.shape[-2], panel.shape[-2])
    nowhere_lower, somewhere_higher = np.ones(shape, bool), np.zeros(shape, bool)
    for axis in range(len(AXES)):
        mine, theirs = candidates[..., :, None, axis], panel[..., None, :, axis]
        nowhere_lower &= mine >= theirs
        somewhere_higher |= mine > theirs
    return nowhere_lower & somewhere_higher


def dominance(candidates: Floats, panel: Floats, *, own: NDArray[np.int64]) -> Floats:
    """Return the share of the panel's other members that each candidate dominates, (..., K).

    Parameters
    ----------
    candidates, panel
        Normalised axes, shapes (..., K, 4) and (..., M, 4).
    own
        Candidate k's place in the panel, -1 for one that is no member, shape (K,).
    """
    member = own >= 0
    is_own = member[:, None] & (own[:, None] == np.arange(panel.shape[-2]))
    beaten = (dominates(candidates, panel) & ~is_own).sum(axis=-1)
    n_others = panel.shape[-2] - member
    share = beaten / np.where(n_others > 0, n_others, np.nan)
    no_panel = np.logical_or.reduce(np.isnan(panel), axis=(-2, -1), keepdims=True)[..., 0]
    undefined = no_panel | np.isnan(candidates).any(axis=-1)
    return np.where(undefined, np.nan, share)


def ideal_point(normalised: Floats, axis_weights: Floats) -> Floats:
    """Return S, one less the weighted squared distance to the best corner, shape (..., K).

    `axis_weights` has shape (4,), or (..., 1, 4) for a weight draw per replicate.
    """
    total = np.zeros(np.broadcast_shapes(normalised.shape, axis_weights.shape)[:-1])
    for axis in range(len(AXES)):
        total += axis_weights[..., axis] * (1 - normalised[..., axis]) ** 2
    return 1 - total


def worst_axis(normalised: Floats) -> Floats:
    """Return W, the lowest normalised axis, shape (..., K)."""
    return normalised.min(axis=-1)


def combine(dominance: Floats, ideal_point: Floats, worst_axis: Floats, *, by: Floats) -> Floats:
    """Return CRS, shape (..., K), from its parts and the component weights `by`.

    `by` has shape (3,), or (..., 1, 3) for a weight draw per replicate.
    """
    return by[..., 0] * dominance + by[..., 1] * ideal_point + by[..., 2] * worst_axis


def score(
    candidates: Floats,
    panel: Floats,
    *,
    within: Anchors,
    own: NDArray[np.int64],
    weights: Weights,
) -> Scores:
    """Score candidates against a panel on given anchors.

    Parameters
    ----------
    candidates, panel
        Raw axes, shapes (..., K, 4) and (..., M, 4).
    within
        The anchors, shapes (..., 4): those of the panel, or fixed ones.
    own
        Candidate k's place in the panel, -1 for one that is no member, shape (K,).
    weights
        Component and axis weights.
    """
    normalised = normalise(candidates, within)
    parts = (
        dominance(normalised, normalise(panel, within), own=own),
        ideal_point(normalised, np.asarray(weights.axes)),
        worst_axis(normalised),
    )
    return Scores(combine(*parts, by=np.asarray(weights.components)), *parts, normalised)


def score_cohort(panels: Floats, *, weights: Weights) -> Scores:
    """Score every encoder of raw panels (..., K, 4) against its own panel and its anchors.

    A panel with a zero-width or NaN axis has NaN throughout; `check_panel` refuses it.
    """
    places = np.arange(panels.shape[-2])
    return score(panels, panels, within=replicate_anchors(panels), own=places, weights=weights)


def aggregate(axes: Floats, observed: Bools) -> Floats:
    """Return the mean over each encoder's observed datasets, shape (..., K, 4).

    Parameters
    ----------
    axes
        Raw axes by encoder and dataset, shape (..., K, D, 4); what stands in a cell that is not
        observed has no effect, and a NaN in an observed cell spreads to the mean.
    observed
        Whether the cell exists, shape (K, D). An encoder without cells has NaN.
    """
    total = np.zeros((*axes.shape[:-2], axes.shape[-1]))
    for dataset in range(axes.shape[-2]):
        total += np.where(observed[:, dataset, None], axes[..., dataset, :], 0.0)
    n_cells = observed.sum(axis=1)[:, None]
    return total / np.where(n_cells > 0, n_cells, np.nan)
