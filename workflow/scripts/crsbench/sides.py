"""The sides of a dataset: samples and labels as a probe and its evaluation take them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench.files import read_metadata, read_parquet
from crsbench.splits import Task, Uncertain, truth_matrix

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
        values = truth if labels.task == "multilabel" else truth.argmax(axis=1)
        return cls(index["sample"].to_list(), values, truth)


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
    """Read the three sides of a dataset, in the order of its index."""
    joined = read_parquet(index).join(
        read_parquet(split), on="sample", how="left", maintain_order="left"
    )
    return {side: Side.of(joined.filter(pl.col("side") == side), labels) for side in SIDES}


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
    shift
        The index of each shift target; all of it is evaluated.
    labels
        What the dataset's labels mean; a shift target shares them.
    """
    targets = {name: Side.of(read_parquet(index), labels) for name, index in shift.items()}
    return {dataset: test} | targets
