"""The tables of one cell: what a probe is fitted on, what it is scored on, what that depends on."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench.files import read_metadata, read_parquet
from crsbench.splits import Task, Uncertain, targets

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
    targets
        ``(N, C)`` of 1, 0 and NaN for any task.
    """

    samples: list[str]
    labels: NDArray[Any]
    targets: NDArray[np.float64]

    @classmethod
    def of(cls, index: pl.DataFrame, labels: "Labels") -> Self:
        """Take the rows of an index."""
        truth = targets(
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


def read_target(index: str | Path, *, labels: Labels) -> Side:
    """Read a shift target: all of its index."""
    return Side.of(read_parquet(index), labels)


def prediction_identity(
    dataset: str,
    *,
    clean: str | Path,
    perturbed: str | Path,
    split: str | Path,
    subsamples: str | Path,
    shift: Mapping[str, str | Path],
) -> dict[str, dict[str, str | float]]:
    """Return what the predictions on each target depend on, as columns of a run record.

    Parameters
    ----------
    clean, perturbed
        Feature tables of the dataset.
    split, subsamples
        Tables of the dataset.
    shift
        Feature table of each shift target.
    """
    source = read_metadata(clean)
    fitted = {
        "index_digest": source["index_digest"],
        "split_digest": read_metadata(split)["split_digest"],
        "subsamples_digest": read_metadata(subsamples)["subsamples_digest"],
        "weights_digest": source["weights_digest"],
        "transform_digest": source["transform_digest"],
        "features_digest": source["feature_digest"],
        "perturbation_digest": read_metadata(perturbed)["perturbation_digest"],
    }
    evaluated = {dataset: source} | {name: read_metadata(path) for name, path in shift.items()}
    return {
        target: {
            **fitted,
            "target_digest": about["index_digest"],
            "feature_dtype": about["dtype"],
            "input_min": float(about["input_min"]),
            "input_max": float(about["input_max"]),
        }
        for target, about in evaluated.items()
    }
