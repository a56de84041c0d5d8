"""Prevalence by side and target, and what is pointed out."""

import numpy as np
import pytest

from crsbench.prevalence import PREVALENCE, prevalence_lines, prevalence_table
from crsbench.sides import Side

NAN = np.nan


def side(*columns: list[float]) -> Side:
    truth = np.array(columns, dtype=float).T
    return Side([f"s{row}" for row in range(len(truth))], truth, truth)


def notes(train: Side, other: Side, name: str = "test") -> list[str]:
    table = prevalence_table({"train": train, name: other}, classes=["Edema"])
    return [note for note in table["note"] if note]


def test_positives_negatives_and_masked_labels_are_counted_by_set_and_class():
    sets = {
        "train": side([1, 0, 0, NAN], [1, 1, 1, 0]),
        "elsewhere": side([NAN, NAN], [1, 0]),
    }
    table = prevalence_table(sets, classes=["Edema", "Fracture"])
    assert table.schema == PREVALENCE
    assert table.drop("note").rows() == [
        ("train", "Edema", 4, 1, 2, 1, pytest.approx(1 / 3)),
        ("train", "Fracture", 4, 3, 1, 0, 0.75),
        ("elsewhere", "Edema", 2, 0, 0, 2, None),
        ("elsewhere", "Fracture", 2, 1, 1, 0, 0.5),
    ]
    assert set(table["note"]) == {""}


@pytest.mark.parametrize("swapped", [False, True])
def test_a_prevalence_that_differs_by_more_than_five_times_is_pointed_out(swapped):
    rare, common = side([1] + [0] * 59), side([1] * 6 + [0] * 54)
    first, second = (common, rare) if swapped else (rare, common)
    shares = "0.0167, in train 0.1" if swapped else "0.1, in train 0.0167"
    assert notes(first, second, "mimic") == [
        f"Edema in mimic: prevalence {shares}: a factor of 6.0"
    ]


def test_five_times_is_not_pointed_out():
    assert notes(side([1] + [0] * 9), side([1] * 5 + [0] * 5)) == []


def test_a_class_that_one_of_the_two_lacks_is_pointed_out_and_one_that_both_lack_is_not():
    none, half = side([0, 0]), side([1, 0])
    assert notes(half, none) == ["Edema in test: prevalence 0, in train 0.5: none in one of them"]
    assert notes(none, half) == ["Edema in test: prevalence 0.5, in train 0: none in one of them"]
    assert notes(none, none) == []


def test_a_label_that_nobody_looked_for_is_not_pointed_out():
    assert notes(side([1, 0]), side([NAN, NAN])) == []
    assert notes(side([NAN, NAN]), side([1, 0])) == []


def test_a_log_has_a_line_for_each_class():
    sets = {"train": side([1, 0, 0]), "elsewhere": side([NAN])}
    table = prevalence_table(sets, classes=["Edema"])
    assert prevalence_lines(table) == ["Edema: train 0.333, elsewhere None"]
