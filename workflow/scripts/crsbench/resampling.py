"""Resampling of a few exchangeable units (seeds), and what replicates say about a ranking.

Law: a replicate draws n of n units with replacement; what it drew is a multiset, written as the
counts of the n units. Replicates that drew the same multiset are the same replicate, so a set of
replicates is an array of statistics (R, K), one row per *distinct* replicate and one column per
ranked item, with integer multiplicities (R,). Random draws and the exact distribution over all
multisets then differ in nothing but their multiplicities, and sums of these are exact.

A row that holds a NaN is undefined: it is left out of every summary, and counted. Quantiles are
values of the inverse distribution function: the smallest x with P(X <= x) >= q.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from crsbench.arrays import Bools, Floats, Integers
from crsbench.errors import CrsBenchError
from crsbench.rankings import count_above_and_equal, top_k

#: Beyond this the exact distribution costs more than it tells: 12 units have 1,352,078 multisets.
MOST_ENUMERABLE_UNITS = 10


@dataclass(frozen=True)
class Replicates:
    """Statistics of distinct replicates and how often each occurs.

    Attributes
    ----------
    statistic
        Shape (R, K); NaN where undefined.
    multiplicity
        How often each replicate was drawn, or its share of all n^n ordered draws; shape (R,).
    """

    statistic: Floats
    multiplicity: Integers

    def __post_init__(self) -> None:
        if self.statistic.ndim != 2 or self.multiplicity.shape != self.statistic.shape[:1]:
            raise CrsBenchError(
                f"replicates: statistic {self.statistic.shape} and multiplicity "
                f"{self.multiplicity.shape} do not match; expected (R, K) and (R,)"
            )

    @property
    def n_replicates(self) -> int:
        """The number of replicates, each counted as often as it occurs."""
        return int(self.multiplicity.sum())

    @property
    def n_undefined(self) -> int:
        """The number of replicates with a NaN, each counted as often as it occurs."""
        return self.n_replicates - self.defined().n_replicates

    def defined(self) -> "Replicates":
        """Return the replicates without a NaN."""
        kept = ~np.isnan(self.statistic).any(axis=1)
        return Replicates(self.statistic[kept], self.multiplicity[kept])


def draw_multisets(n_units: int, *, n_replicates: int, generator: np.random.Generator) -> Integers:
    """Draw n units with replacement, n_replicates times.

    Returns
    -------
    Counts of the units, shape (n_replicates, n_units); each row sums to n_units.
    """
    chances = np.full(n_units, 1 / n_units)
    return generator.multinomial(n_units, chances, size=n_replicates).astype(np.int64)


def enumerate_multisets(n_units: int) -> tuple[Integers, Integers]:
    """Return every multiset of n of n units and its number of ordered draws.

    Returns
    -------
    counts
        Shape (M, n_units) with M = C(2n - 1, n): 126 for five units.
    multiplicity
        The multinomial coefficients n! / prod(m_i!), shape (M,); they sum to n^n.

    Raises
    ------
    CrsBenchError
        For more than `MOST_ENUMERABLE_UNITS` units.
    """
    if not 1 <= n_units <= MOST_ENUMERABLE_UNITS:
        raise CrsBenchError(
            f"exact distribution: {n_units} seeds; 1 to {MOST_ENUMERABLE_UNITS} can be enumerated"
        )
    draws = np.array(list(combinations_with_replacement(range(n_units), n_units)))
    counts = (draws[:, :, None] == np.arange(n_units)).sum(axis=1)
    return counts, np.array([_n_ordered_draws(row) for row in counts.tolist()])


def _n_ordered_draws(counts: list[int]) -> int:
    return math.factorial(sum(counts)) // math.prod(math.factorial(count) for count in counts)


def distinct_multisets(counts: Integers) -> tuple[Integers, Integers]:
    """Return the distinct rows of counts (..., n) and each row's place among them, shape (...)."""
    rows = counts.reshape(-1, counts.shape[-1])
    distinct, place = np.unique(rows, axis=0, return_inverse=True)
    return distinct, place.reshape(counts.shape[:-1])


def average_over_units(values: Floats, counts: Integers) -> Floats:
    """Return the mean of the units' values under each multiset.

    Parameters
    ----------
    values
        Shape (n_units, ...).
    counts
        Shape (R, n_units).

    Returns
    -------
    Shape (R, ...). A NaN of any unit, drawn or not, makes the mean NaN: what is undefined for one
    seed is undefined in the row. Exactly the common value where all units agree.
    """
    shares = counts / counts.sum(axis=1, keepdims=True)
    excess = np.zeros((len(counts), *values.shape[1:]))
    for unit, value in enumerate(values):
        excess += shares[:, unit].reshape(-1, *[1] * value.ndim) * (value - values[0])
    return values[0] + excess


def mean(replicates: Replicates) -> Floats:
    """Return the mean over the defined replicates, shape (K,); NaN without any."""
    kept = replicates.defined()
    if not kept.n_replicates:
        return np.full(kept.statistic.shape[1], np.nan)
    return kept.multiplicity @ kept.statistic / kept.n_replicates


def quantiles(replicates: Replicates, levels: Sequence[float]) -> Floats:
    """Return the inverse distribution function at each level, (L, K); NaN without replicates."""
    kept = replicates.defined()
    if not kept.n_replicates:
        return np.full((len(levels), kept.statistic.shape[1]), np.nan)
    order = np.argsort(kept.statistic, axis=0)
    reached = np.cumsum(kept.multiplicity[order], axis=0)
    # A level is a rounded number: (1 - 0.95) / 2 must not pass over the 25th of 1,000.
    wanted = [level * kept.n_replicates * (1 - 1e-12) for level in levels]
    first = np.stack([(reached >= number).argmax(axis=0) for number in wanted])
    return np.take_along_axis(kept.statistic, np.take_along_axis(order, first, 0), 0)


def percentile_interval(replicates: Replicates, *, level: float = 0.95) -> tuple[Floats, Floats]:
    """Return the central percentile interval, two arrays (K,)."""
    tail = (1 - level) / 2
    lower, upper = quantiles(replicates, (tail, 1 - tail))
    return lower, upper


def basic_interval(percentile: tuple[Floats, Floats], point: Floats) -> tuple[Floats, Floats]:
    """Return a percentile interval reflected about the point estimate, two arrays (K,)."""
    lower, upper = percentile
    return 2 * point - upper, 2 * point - lower


def rank_probabilities(replicates: Replicates) -> Floats:
    """Return the probability that item k has rank r + 1, shape (K, K); NaN without replicates.

    Items tied in a replicate share the mass of the ranks that they occupy equally, so rows and
    columns sum to one.
    """
    kept = replicates.defined()
    n_items = kept.statistic.shape[1]
    n_above, n_equal = count_above_and_equal(kept.statistic)
    mass = np.zeros((n_items, n_items))
    for offset in range(int(n_equal.max(initial=0))):
        row, item = np.nonzero(n_equal > offset)
        share = kept.multiplicity[row] / n_equal[row, item]
        np.add.at(mass, (item, n_above[row, item] + offset), share)
    return mass / (kept.n_replicates or np.nan)


def top_k_probabilities(replicates: Replicates, k: int) -> Floats:
    """Return the probability of a rank among the first k, ties sharing the mass, shape (K,)."""
    return rank_probabilities(replicates)[:, :k].sum(axis=1)


def differences(replicates: Replicates) -> tuple[Integers, Integers, Replicates]:
    """Return the differences of all pairs i < j within each replicate.

    Returns
    -------
    first, second
        The items of each pair, shape (K (K - 1) / 2,).
    differences
        Replicates of first minus second, one column per pair.
    """
    first, second = np.triu_indices(replicates.statistic.shape[1], 1)
    statistic = replicates.statistic[:, first] - replicates.statistic[:, second]
    return first, second, Replicates(statistic, replicates.multiplicity)


def unresolved_from(replicates: Replicates, leader: int, *, level: float = 0.95) -> Bools:
    """Return whose interval of the difference from the leader holds zero, shape (K,).

    The leader itself is among them. All are, when no replicate is defined.
    """
    statistic = replicates.statistic[:, [leader]] - replicates.statistic
    lower, upper = percentile_interval(Replicates(statistic, replicates.multiplicity), level=level)
    return ~((lower > 0) | (upper < 0))


@dataclass(frozen=True)
class Tier:
    """The leading tier: its members, shape (K,), and the share of replicates that agree on it."""

    members: Bools
    share: float


def leading_tier(replicates: Replicates, *, level: float = 0.95) -> Tier | None:
    """Return the smallest set that is the top k of at least a share `level` of the replicates.

    Notes
    -----
    Protocol, section 9: k exceeds one unless one item has rank 1 with at least that probability.
    The set of all K items always qualifies. None without items or defined replicates.
    """
    kept = replicates.defined()
    if not kept.n_replicates or not kept.statistic.shape[1]:
        return None
    leads_alone = rank_probabilities(kept)[:, 0].max() >= level
    tiers = _most_frequent_tops(kept, first=1 if leads_alone else 2)
    return next(tier for tier in tiers if tier.share >= level)


def _most_frequent_tops(kept: Replicates, *, first: int) -> Iterator[Tier]:
    """Yield the most frequent top-k set for k = first, first + 1, ... K."""
    n_items = kept.statistic.shape[1]
    for k in range(min(first, n_items), n_items + 1):
        sets, place = np.unique(top_k(kept.statistic, k), axis=0, return_inverse=True)
        counts = np.bincount(place.ravel(), weights=kept.multiplicity)
        yield Tier(sets[counts.argmax()], float(counts.max() / kept.n_replicates))
