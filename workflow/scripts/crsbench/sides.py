"""The sides of a dataset: samples and labels as a probe and its evaluation take them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench.errors import DataError
from crsbench.files import read_metadata, read_parquet
from crsbench.splits import Task, Uncertain, check_no_leak, truth_matrix

SIDES = ("train", "calibration", "test")


@dataclass(frozen=True)
class Side:
    """Samples, and their labels as a probe and its evaluation take them.

    Attributes
    ----------
    samples
        N identifiers.
    labels
        ``(N,)`` class indices, or for a multilabel task ``(N, C)`` of 1, 0 and NaN for masked.
    truth
        ``(N, C)`` of 1, 0 and NaN for any task.
    """

    samples: list[str]
    labels: NDArray[Any]
    truth: NDArray[np.float64]

    @classmethod
    def of(cls, index: pl.DataFrame, labels: "Labels") -> Self:
        """Take the rows of an index."""
        truth = truth_matrix(
            index["labels"], task=labels.task, classes=labels.classes, uncertain=labels.uncertain
        )
        return cls._with_truth(index["sample"].to_list(), truth, labels.task)

    @classmethod
    def _with_truth(cls, samples: list[str], truth: NDArray[np.float64], task: Task) -> Self:
        return cls(samples, truth if task == "multilabel" else truth.argmax(axis=1), truth)

    def in_classes_of(self, source: "Labels", *, own: Sequence[str]) -> Self:
        """Return the side of a shift target with the classes of its source, by name.

        Parameters
        ----------
        source
            What the labels of the source mean; it has all the target's classes.
        own
            The target's classes, in the order of its truth. A class of the source that is not
            among them has no positive; a label is masked, since nobody looked for it.
        """
        absent = np.nan if source.task == "multilabel" else 0.0
        truth = np.full((len(self.samples), len(source.classes)), absent)
        truth[:, [list(source.classes).index(name) for name in own]] = self.truth
        return self._with_truth(self.samples, truth, source.task)


@dataclass(frozen=True)
class Labels:
    """What the labels of a dataset mean, and what becomes of uncertain ones."""

    task: Task
    classes: Sequence[str]
    uncertain: Uncertain

    @classmethod
    def read(cls, index: str | Path, *, uncertain: Uncertain) -> Self:
        """Read task and classes from the metadata of an index."""
        about: Mapping[str, Any] = read_metadata(index)
        return cls(about["task"], json.loads(about["classes"]), uncertain)


def read_sides(index: str | Path, split: str | Path, *, labels: Labels) -> dict[str, Side]:
    """Read the three sides of a dataset, in the order of its index.

    Raises
    ------
    DataError
        A group or a duplicate cluster is on two sides, or the two files have different samples.
    """
    table, sides = read_parquet(index), read_parquet(split)
    check_no_leak(table, sides)
    joined = table.join(sides, on="sample", how="left", maintain_order="left")
    return {side: Side.of(joined.filter(pl.col("side") == side), labels) for side in SIDES}


def read_targets(shift: Mapping[str, str | Path], *, labels: Labels) -> dict[str, Side]:
    """Read the shift targets of a dataset, all of whose images are evaluated.

    Parameters
    ----------
    shift
        The index of each.
    labels
        What the dataset's labels mean. Its targets' classes are brought into this order by name,
        and uncertain labels are treated alike.

    Raises
    ------
    DataError
        A target has another task, or a class that the dataset has not.
    """
    return {name: _read_target(name, index, labels) for name, index in shift.items()}


def _read_target(name: str, index: str | Path, labels: Labels) -> Side:
    own = Labels.read(index, uncertain=labels.uncertain)
    foreign = [label for label in own.classes if label not in labels.classes]
    if own.task != labels.task or foreign:
        raise DataError(
            f"{index}: {name} is {own.task} with {', '.join(foreign) or 'the same classes'}, its "
            f"source {labels.task} with {', '.join(labels.classes)}; index both again"
        )
    return Side.of(read_parquet(index), own).in_classes_of(labels, own=own.classes)


def read_evaluated(
    dataset: str,
    test: Side,
    *,
    shift: Mapping[str, str | Path],
    labels: Labels,
) -> dict[str, Side]:
    """Return what the probes of a dataset are evaluated on: its test side, and shift targets.

    Parameters
    ----------
    dataset, test
        The dataset and its test side, which comes first.
    shift, labels
        As `read_targets` takes them.
    """
    return {dataset: test} | read_targets(shift, labels=labels)
