"""Rankings and their agreement, on arrays; higher values rank first.

Law: the last dimension holds the K ranked items, any before it independent rankings. Values are
compared exactly, never rounded. Tied items share the mean of their ranks; where a set of exactly
k items is needed, ties are broken by the items' order. What is undefined (a NaN among the values,
one side constant, fewer than two items) is NaN.
"""

import numpy as np

from crsbench.arrays import Bools, Floats, Integers


def descending_order(values: Floats) -> Integers:
    """Return the items' places from the highest value to the lowest, ties by place, (..., K)."""
    return np.argsort(-values, axis=-1, kind="stable")


def count_above_and_equal(values: Floats) -> tuple[Integers, Integers]:
    """Return how many items are above each item and how many equal it (itself included)."""
    mine, theirs = values[..., :, None], values[..., None, :]
    return (theirs > mine).sum(axis=-1), (theirs == mine).sum(axis=-1)


def mid_ranks(values: Floats) -> Floats:
    """Return ranks from 1 (highest), tied items sharing the mean of theirs, (..., K)."""
    n_above, n_equal = count_above_and_equal(values)
    undefined = np.isnan(values).any(axis=-1, keepdims=True)
    return np.where(undefined, np.nan, n_above + (n_equal + 1) / 2)


def top_k(values: Floats, k: int) -> Bools:
    """Return which items are the k highest, ties broken by the items' order, (..., K)."""
    members = np.zeros(values.shape, bool)
    np.put_along_axis(members, descending_order(values)[..., :k], True, axis=-1)
    return members


def top_k_overlap(first: Floats, second: Floats, *, k: int) -> Floats:
    """Return the share of the k highest that two rankings have in common, shape (...).

    NaN when there are not more than k items: the top k would be everyone.
    """
    if first.shape[-1] <= k:
        return np.full(first.shape[:-1], np.nan)
    share = (top_k(first, k) & top_k(second, k)).sum(axis=-1) / k
    undefined = np.isnan(first).any(axis=-1) | np.isnan(second).any(axis=-1)
    return np.where(undefined, np.nan, share)


def kendall_tau_b(first: Floats, second: Floats) -> Floats:
    """Return Kendall's tau-b, shape (...): pairs tied on either side count for neither."""
    i, j = np.triu_indices(first.shape[-1], 1)
    a = np.sign(first[..., i] - first[..., j])
    b = np.sign(second[..., i] - second[..., j])
    untied = np.abs(a).sum(axis=-1) * np.abs(b).sum(axis=-1)
    return _ratio((a * b).sum(axis=-1), np.sqrt(untied))


def spearman(first: Floats, second: Floats) -> Floats:
    """Return Spearman's rho, the correlation of the mid-ranks, shape (...)."""
    n_items = max(1, first.shape[-1])  # no items: no mean, and no warning either
    a, b = (
        ranks - ranks.sum(axis=-1, keepdims=True) / n_items
        for ranks in (mid_ranks(first), mid_ranks(second))
    )
    spread = (a**2).sum(axis=-1) * (b**2).sum(axis=-1)
    return _ratio((a * b).sum(axis=-1), np.sqrt(spread))


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    return numerator / np.where(denominator > 0, denominator, np.nan)
