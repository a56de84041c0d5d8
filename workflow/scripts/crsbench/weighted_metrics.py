"""AUROC and ECE under case weights, for thousands of replicates at once.

Law: cases belong to groups (a patient, a lesion), and a replicate gives each group an integer
weight, the number of times that it was drawn; all its cases have that weight. Scores are sorted
once. What a replicate adds is two products of a sparse matrix with the groups' weights, and a
running sum over the rarer outcome; a case's weight is never written out. Sums of weights are
integers, so AUROC is exact whatever the order of summation.

    AUROC = sum_p w_p (N(below p) + N(tied with p) / 2) / (W_pos W_neg)

with N the weight of the negatives. The same as repeating every case as often as it weighs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from crsbench.arrays import Bools, Floats, Integers
from crsbench.errors import CrsBenchError

Floats32 = NDArray[np.float32]

#: Replicates that are worked on together: rows of this length keep the sums out of Python's way,
#: and 13,000 groups of them take 27 MB.
BLOCK = 512
#: Integers above this are not all exact in float32.
_EXACT = 2**24


@dataclass(frozen=True)
class GroupDraws:
    """How often each of G groups was drawn in each replicate, in blocks of replicates.

    Attributes
    ----------
    blocks
        Arrays (G, R_b) of whole numbers in float32, in which they are exact and fast.
    """

    blocks: tuple[Floats32, ...]

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return self.blocks[0].shape[0]

    @property
    def n_replicates(self) -> int:
        """The number of replicates."""
        return sum(block.shape[1] for block in self.blocks)


def draw_groups(
    n_groups: int, *, n_replicates: int, generator: np.random.Generator, block: int = BLOCK
) -> GroupDraws:
    """Draw all groups with replacement, as many as there are, in every replicate."""
    if n_groups < 1 or n_replicates < 1:
        raise CrsBenchError(f"cannot draw {n_replicates} replicates of {n_groups} groups")
    sizes = [min(block, n_replicates - start) for start in range(0, n_replicates, block)]
    return GroupDraws(tuple(_draw_block(n_groups, size, generator) for size in sizes))


def _draw_block(n_groups: int, n_replicates: int, generator: np.random.Generator) -> Floats32:
    counts = np.empty((n_groups, n_replicates), np.float32)
    for replicate in range(n_replicates):
        drawn = generator.integers(n_groups, size=n_groups)
        counts[:, replicate] = np.bincount(drawn, minlength=n_groups)
    return counts


def weighted_auroc(
    scores: Floats, labels: Floats, *, groups: Integers, draws: GroupDraws
) -> Floats:
    """Return AUROC in each replicate, ties counting one half.

    Parameters
    ----------
    scores
        Decision values, shape (N,), higher for positives.
    labels
        1 positive, 0 negative, NaN masked; shape (N,).
    groups
        Group of each case, 0 to G - 1, shape (N,).
    draws
        Weights of the groups in R replicates.

    Returns
    -------
    Shape (R,); NaN in a replicate without positives or without negatives.
    """
    _check_cases(scores, labels, groups, draws)
    positive, negative = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)
    if len(positive) > len(negative):
        return weighted_auroc(-scores, 1 - labels, groups=groups, draws=draws)
    if not len(positive):
        return np.full(draws.n_replicates, np.nan)
    steps = _Steps.of(scores, positive, negative, groups, draws.n_groups)
    return np.concatenate([steps.auroc(block) for block in draws.blocks])


def _check_cases(scores: Floats, labels: Floats, groups: Integers, draws: GroupDraws) -> None:
    if not scores.shape == labels.shape == groups.shape == (len(scores),):
        raise CrsBenchError(
            f"scores {scores.shape}, labels {labels.shape}, groups {groups.shape}: expected (N,)"
        )
    if len(groups) and not (groups.min() >= 0 and groups.max() < draws.n_groups):
        raise CrsBenchError(f"groups {groups.min()} to {groups.max()}: only {draws.n_groups} drawn")
    if np.isnan(scores[~np.isnan(labels)]).any():
        raise CrsBenchError("a score is NaN where its label is not")


@dataclass(frozen=True)
class _Steps:
    """Sorted cases: what lies between the distinct scores of the positives.

    Attributes
    ----------
    positive
        Cases of each group at each distinct score of a positive, ascending: sparse (U, G).
    between
        Negatives of each group between one boundary and the next: sparse (U, G) when no negative
        ties with a positive, else (2 U, G) with the boundaries below and at every score.
    negative
        Negatives of each group: sparse (1, G).
    """

    positive: csr_array
    between: csr_array
    negative: csr_array

    @classmethod
    def of(
        cls, scores: Floats, positive: Integers, negative: Integers, groups: Integers, n_groups: int
    ) -> "_Steps":
        """Sort the cases at the places `positive` and `negative`."""
        positive = positive[np.argsort(scores[positive], kind="stable")]
        negative = negative[np.argsort(scores[negative], kind="stable")]
        distinct, first = np.unique(scores[positive], return_index=True)
        below = np.searchsorted(scores[negative], distinct, side="left")
        up_to = np.searchsorted(scores[negative], distinct, side="right")
        tied = bool((below != up_to).any())
        ends = np.stack([below, up_to], axis=1).ravel() if tied else below
        return cls(
            _segments(groups[positive], np.append(first[1:], len(positive)), n_groups),
            _segments(groups[negative], ends, n_groups),
            _segments(groups[negative], np.array([len(negative)]), n_groups),
        )

    def auroc(self, counts: Floats32) -> Floats:
        """Return AUROC under weights of the groups (G, R), shape (R,)."""
        n_negative = (self.negative @ counts)[0].astype(np.float64)
        weights = self.positive @ counts
        n_positive = weights.sum(axis=0, dtype=np.float64)
        if 2 * max(n_negative.max(), n_positive.max()) >= _EXACT:
            raise CrsBenchError(f"more than {_EXACT // 2:,} cases of one outcome in a replicate")
        below, credit = self._below(counts)
        area = credit * np.einsum("ur,ur->r", below, weights, dtype=np.float64)
        pairs = n_positive * n_negative
        return area / np.where(pairs > 0, pairs, np.nan)

    def _below(self, counts: Floats32) -> tuple[Floats32, float]:
        """Return the weight of the negatives below each score, (U, R), and its unit.

        With ties the weights below and at a score are added, and the unit is one half.
        """
        passed = self.between @ counts
        # Row by row this is several times faster than cumsum along the first axis.
        for row, before in zip(passed[1:], passed[:-1], strict=True):
            row += before
        has_ties = len(passed) > self.positive.shape[0]
        return (passed[0::2] + passed[1::2], 0.5) if has_ties else (passed, 1.0)


def _segments(groups: Integers, ends: Integers, n_groups: int) -> csr_array:
    """Return how many cases of each group lie in consecutive segments, sparse (n_ends, G)."""
    used = groups[: ends[-1]] if len(ends) else groups[:0]
    starts = np.concatenate([[0], ends])
    ones = np.ones(len(used), np.float32)
    return csr_array((ones, used, starts), shape=(len(ends), n_groups))


def weighted_ece(
    confidence: Floats, outcome: Floats, *, groups: Integers, draws: GroupDraws, n_bins: int
) -> Floats:
    """Return the expected calibration error in each replicate.

    Parameters
    ----------
    confidence
        Probabilities of the outcome, shape (N,).
    outcome
        1, 0, or NaN for masked; shape (N,).
    groups
        Group of each case, 0 to G - 1, shape (N,).
    draws
        Weights of the groups in R replicates.
    n_bins
        Bins of equal width (b/n, (b+1)/n], the first closed at 0.

    Returns
    -------
    Shape (R,); NaN in a replicate without cases.

    Notes
    -----
    A bin's share times its gap is |sum of w (confidence - outcome)| over the sum of all w, so one
    sum a bin is enough.
    """
    _check_cases(confidence, outcome, groups, draws)
    kept = ~np.isnan(outcome)
    edges = np.arange(n_bins + 1) / n_bins
    bins = np.searchsorted(edges, confidence[kept], side="left") - 1
    places = np.clip(bins, 0, n_bins - 1), groups[kept]
    shape = (n_bins, draws.n_groups)
    excess = csr_array((confidence[kept] - outcome[kept], places), shape=shape)
    n_cases = np.bincount(groups[kept], minlength=draws.n_groups).astype(np.float64)
    return np.concatenate([_calibration_gap(excess, n_cases, block) for block in draws.blocks])


def _calibration_gap(excess: csr_array, n_cases: Floats, counts: Floats32) -> Floats:
    weights = counts.astype(np.float64)
    total = n_cases @ weights
    return np.abs(excess @ weights).sum(axis=0) / np.where(total > 0, total, np.nan)


def outcomes_present(labels: Floats, *, groups: Integers, draws: GroupDraws) -> Bools:
    """Return which columns have a positive and a negative in each replicate, shape (R, C).

    Parameters
    ----------
    labels
        1, 0, or NaN for masked; shape (N, C).
    groups, draws
        As in `weighted_auroc`.
    """
    has_outcome = [_groups_with(labels == value, groups, draws.n_groups) for value in (1, 0)]
    return np.concatenate(list(_both_drawn(has_outcome, draws)))


def _groups_with(cases: Bools, groups: Integers, n_groups: int) -> Floats32:
    """Return which groups hold such a case, shape (C, G)."""
    held = np.zeros((cases.shape[1], n_groups), np.float32)
    row, column = np.nonzero(cases)
    held[column, groups[row]] = 1
    return held


def _both_drawn(has_outcome: list[Floats32], draws: GroupDraws) -> Iterator[Bools]:
    for block in draws.blocks:
        positive, negative = (held @ block > 0 for held in has_outcome)
        yield (positive & negative).T
