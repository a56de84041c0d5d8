"""Stratification: each decision is the better one, bins are full, and nobody is favoured."""

from fractions import Fraction

import numpy as np
import pytest

from crsbench.stratification import UNPLACED, Units, fill, represent

SHARES = [0.05, 0.15, 0.2, 0.6]


def draw_counts(n_units: int, n_labels: int, *, seed: int, largest: int = 1) -> np.ndarray:
    """Return counts of labels in units of one to `largest` images, with the images last."""
    random = np.random.default_rng(seed)
    n_images = random.integers(1, largest + 1, n_units)
    labels = random.binomial(n_images[:, None], random.uniform(0.05, 0.6, n_labels))
    return np.column_stack([labels, n_images]).astype(float)


def filled(counts, shares=SHARES, *, order=None, placed=None, capacity=None) -> np.ndarray:
    order = np.arange(len(counts)) if order is None else order
    placed = np.full(len(counts), UNPLACED) if placed is None else placed.copy()
    capacity = [np.inf] * len(shares) if capacity is None else capacity
    fill(Units.of(counts), order, placed, shares=np.array(shares), capacity=np.array(capacity))
    return placed


def chi_square(inside, outside, total, share) -> Fraction:
    """Return the weighted chi-square of a division in two, without rounding."""
    terms = [
        ((a - share * t) ** 2 / share + (o - (1 - share) * t) ** 2 / (1 - share)) / (t * t)
        for a, o, t in zip(inside, outside, total, strict=True)
        if t
    ]
    return sum(terms, Fraction(0))


def worse_decisions(counts, placed, *, of_bin: int, share: Fraction) -> int:
    """Replay the division of one bin from all others; count decisions that raised chi-square."""
    rows = [[Fraction(int(value)) for value in row] for row in counts]
    total = [sum(column) for column in zip(*rows, strict=True)]
    parts = [[Fraction(0)] * len(total), [Fraction(0)] * len(total)]
    n_worse = 0
    for row, unit_bin in zip(rows, placed, strict=True):
        grown = [[a + c for a, c in zip(part, row, strict=True)] for part in parts]
        values = [
            chi_square(grown[0], parts[1], total, share),
            chi_square(parts[0], grown[1], total, share),
        ]
        chosen = int(unit_bin != of_bin)
        n_worse += values[chosen] > values[1 - chosen]
        parts[chosen] = grown[chosen]
    return n_worse


@pytest.mark.parametrize("largest", [1, 5])
@pytest.mark.parametrize("seed", range(3))
def test_every_decision_is_the_one_that_raises_chi_square_less(seed, largest):
    counts = draw_counts(120, 4, seed=seed, largest=largest)
    placed = filled(counts)
    assert worse_decisions(counts, placed, of_bin=3, share=Fraction(6, 10)) == 0
    rest = placed != 3
    assert worse_decisions(counts[rest], placed[rest], of_bin=2, share=Fraction(1, 2)) == 0
    rest &= placed != 2
    assert worse_decisions(counts[rest], placed[rest], of_bin=1, share=Fraction(3, 4)) == 0


def test_labels_are_spread_as_evenly_as_whole_images_allow():
    counts = draw_counts(3000, 10, seed=0)
    placed = filled(counts)
    for position, share in enumerate(SHARES):
        of_bin = counts[placed == position].sum(axis=0)
        np.testing.assert_allclose(of_bin, share * counts.sum(axis=0), atol=4)


def test_a_single_kind_is_divided_exactly():
    placed = filled(np.ones((400, 1)))
    assert np.bincount(placed).tolist() == [20, 60, 80, 240]


def test_a_full_bin_takes_nothing_more():
    counts = draw_counts(100, 3, seed=1)
    for capacity in ([5, 15, 20, 60], [1, 0, 0, 99], [0, 0, 100, 0]):
        shares = np.maximum(capacity, 0) / 100
        placed = filled(counts, shares, capacity=capacity)
        assert np.bincount(placed, minlength=4).tolist() == capacity


def test_what_is_placed_stays_and_counts():
    counts = np.ones((10, 1))
    placed = np.full(10, UNPLACED)
    placed[:4] = 0
    found = filled(counts, [0.5, 0.5], placed=placed)
    assert found[:4].tolist() == [0] * 4
    assert np.bincount(found).tolist() == [5, 5]


def test_a_bin_without_a_share_stays_empty():
    assert set(filled(draw_counts(50, 2, seed=0), [0.5, 0.0, 0.5])) == {0, 2}


def test_a_label_that_no_unit_has_changes_nothing():
    counts = draw_counts(80, 3, seed=2)
    wider = np.insert(counts, 1, 0, axis=1)
    np.testing.assert_array_equal(filled(wider), filled(counts))


def test_the_names_of_units_and_labels_change_nothing():
    counts = draw_counts(150, 4, seed=3, largest=3)
    random = np.random.default_rng(0)
    order, units = random.permutation(150), random.permutation(150)
    before = filled(counts, order=order)
    renamed = counts[units][:, [2, 0, 3, 1, 4]]
    position = np.argsort(units)
    np.testing.assert_array_equal(filled(renamed, order=position[order])[position], before)


def test_twins_are_in_each_bin_as_often_as_its_share():
    random = np.random.default_rng(0)
    drawn = np.array([filled(np.ones((20, 1)), order=random.permutation(20)) for _ in range(2000)])
    for position, share in enumerate(SHARES):
        np.testing.assert_allclose((drawn == position).mean(axis=0), share, atol=0.05)


def test_no_combination_of_labels_is_favoured():
    counts = draw_counts(300, 3, seed=4)
    random = np.random.default_rng(0)
    drawn = np.array([filled(counts, order=random.permutation(300)) for _ in range(200)])
    _, combination = np.unique(counts, axis=0, return_inverse=True)
    assert np.bincount(combination).min() > 10
    for position, share in enumerate(SHARES):
        often = np.bincount(combination, (drawn == position).mean(axis=0))
        np.testing.assert_allclose(often / np.bincount(combination), share, atol=0.03)


def test_contents_are_the_counts_that_are_not_zero():
    units = Units.of(np.array([[0.0, 2, 3], [0, 0, 1], [1, 1, 1]]))
    assert units.contents == [[(1, 2), (2, 3)], [(2, 1)], [(0, 1), (1, 1), (2, 1)]]


def test_the_rarest_kind_is_represented_first():
    required = np.array([[True, True], [True, False], [True, False]])
    placed = np.full(3, UNPLACED)
    represent(required, np.arange(3), placed, n_bins=3)
    assert placed.tolist() == [0, 1, 2]


def test_a_unit_that_represents_two_kinds_is_placed_once():
    required = np.array([[True, True], [True, True], [True, True]])
    placed = np.full(3, UNPLACED)
    represent(required, np.array([2, 0, 1]), placed, n_bins=2)
    assert placed.tolist() == [1, UNPLACED, 0]
