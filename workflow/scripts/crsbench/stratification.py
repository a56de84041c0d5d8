"""Stratification: units of labelled images go into bins so that every label is spread evenly.

Units (groups, or single images) are placed one by one, in a random order. First the largest bin is
divided from all others, then the next largest from what is left. With p the share of a bin among
what is divided, q = 1 - p, A and O the counts of label k inside and outside so far, T its total, a
unit with counts c goes inside if that raises the weighted chi-square

    sum_k 1/T_k ((A_k - p T_k)^2 / (p T_k) + (O_k - q T_k)^2 / (q T_k))

less than going outside does, i.e. if

    sum_k c_k / T_k^2 ((2 A_k + c_k) / p - (2 O_k + c_k) / q) < 0.

The number of images is one more label. A decision is one correctly rounded sum (`math.fsum`), so
that machines and versions agree to the last bit. Dividing in two is what makes it fast: a bin with
three quarters of all images costs one decision a unit, and the others a quarter of that together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

#: Bin of a unit that has none yet.
UNPLACED = -1


@dataclass(frozen=True)
class Units:
    """What is placed: groups or single images, and how often each has each label.

    Attributes
    ----------
    counts : ndarray of float64, (units, K)
        Whole numbers; the last column is the number of images, never 0.
    contents
        For each unit ``(k, count)`` of what is not 0.
    """

    counts: np.ndarray
    contents: Sequence[Sequence[tuple[int, float]]]

    @classmethod
    def of(cls, counts: np.ndarray) -> Self:
        """List the contents of the units."""
        unit, label = np.nonzero(counts)
        pairs = list(zip(label.tolist(), counts[unit, label].tolist(), strict=True))
        ends = np.cumsum(np.bincount(unit, minlength=len(counts))).tolist()
        starts = [0, *ends[:-1]]
        return cls(counts, [pairs[i:j] for i, j in zip(starts, ends, strict=True)])


def represent(required: np.ndarray, order: np.ndarray, placed: np.ndarray, *, n_bins: int) -> None:
    """Place a unit of each required kind in each of the first bins, as far as there are units.

    The rarest kind comes first.

    Parameters
    ----------
    required : ndarray of bool, (units, kinds)
    order : ndarray of int, (units,)
        Which unit is taken where several would do.
    placed : ndarray of int, (units,)
        Bin of each unit, or `UNPLACED`; changed in place.
    """
    n_units = required.sum(axis=0)
    for kind in np.argsort(n_units, kind="stable"):
        candidates = order[required[order, kind]]
        for target in range(n_bins):
            free = candidates[placed[candidates] == UNPLACED]
            if len(free) and not (placed[candidates] == target).any():
                placed[free[0]] = target


def fill(
    units: Units,
    order: np.ndarray,
    placed: np.ndarray,
    *,
    shares: np.ndarray,
    capacity: np.ndarray,
) -> None:
    """Place all units that have no bin yet, as the module says.

    Parameters
    ----------
    units
        All units, placed or not.
    order : ndarray of int, (units,)
        In which they are placed.
    placed : ndarray of int, (units,)
        Bin of each unit, or `UNPLACED`; changed in place.
    shares, capacity : ndarray, (bins,)
        Wanted share of each bin, and the number of images at which it is closed.
    """
    bins = [each for each in np.argsort(-shares, kind="stable") if shares[each] > 0]
    free = order[placed[order] == UNPLACED]
    for position, current in enumerate(bins[:-1]):
        others = bins[position + 1 :]
        of_others = math.fsum(shares[others])
        is_inside = _divide(
            units,
            free,
            inside=units.counts[placed == current].sum(axis=0),
            outside=units.counts[np.isin(placed, others)].sum(axis=0),
            share=float(shares[current] / (shares[current] + of_others)),
            capacity=(capacity[current], capacity[others].sum()),
        )
        placed[free[is_inside]] = current
        free = free[~is_inside]
    placed[free] = bins[-1]


def _divide(
    units: Units,
    free: np.ndarray,
    *,
    inside: np.ndarray,
    outside: np.ndarray,
    share: float,
    capacity: tuple[float, float],
) -> np.ndarray:
    """Return which of the free units go inside; bool, like `free`.

    Parameters
    ----------
    free : ndarray of int
        The units to divide, in order.
    inside, outside : ndarray of float64, (K,)
        Counts of what is placed already.
    share
        Of the inside.
    capacity
        Number of images at which inside and outside are closed.
    """
    total = inside + outside + units.counts[free].sum(axis=0)
    weight = np.divide(1, total**2, out=np.zeros_like(total), where=total > 0)
    enters, leaves = 2 * weight / share, 2 * weight / (1 - share)
    lean = (enters * inside - leaves * outside).tolist()
    own = ((enters - leaves) / 2).tolist()
    steps = {True: enters.tolist(), False: (-leaves).tolist()}
    room = {True: capacity[0] - inside[-1], False: capacity[1] - outside[-1]}
    decisions = []
    for unit in free.tolist():
        content = units.contents[unit]
        wanted = math.fsum([count * (lean[k] + count * own[k]) for k, count in content]) < 0
        chosen = wanted if room[wanted] > 0 else not wanted
        step = steps[chosen]
        for k, count in content:
            lean[k] += count * step[k]
        room[chosen] -= content[-1][1]
        decisions.append(chosen)
    return np.array(decisions, dtype=bool)
