"""Quotas and sizes of subjects add up."""

import numpy as np
import pytest

from crsbench.datasets.drawings.cases import Case, quotas, subject_sizes


@pytest.mark.parametrize(
    ("shares", "total", "expected"),
    [
        ([0.5, 0.3, 0.2], 10, [5, 3, 2]),
        ([1, 1, 1], 10, [4, 3, 3]),
        ([0.98, 0.01, 0.01], 10, [8, 1, 1]),
        ([2, 2], 3, [2, 1]),
    ],
)
def test_quotas_follow_the_shares_and_leave_no_class_out(shares, total, expected) -> None:
    assert quotas(shares, total) == expected


def test_sizes_of_subjects_sum_to_the_total_and_follow_the_shares() -> None:
    sizes = subject_sizes(np.random.default_rng(0), 2000, (0.5, 0.3, 0.2))
    assert sum(sizes) == 2000
    assert np.bincount(sizes)[1:] / len(sizes) == pytest.approx([0.5, 0.3, 0.2], abs=0.05)


def test_images_of_a_subject_share_one_generator_and_have_one_each() -> None:
    one, two = (Case(name, "group", frozenset(), {}) for name in ("a", "b"))
    shared, own = zip(*(case.randomness("fundus", 0) for case in (one, two)), strict=True)
    assert shared[0].random() == shared[1].random()
    assert own[0].random() != own[1].random()
