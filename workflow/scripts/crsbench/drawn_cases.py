"""The test cases of a dataset and its shift targets, read and drawn for the case bootstrap.

Law: a draw follows from the seed and the name of what is drawn, and from nothing else, so that
every cell of a dataset, in a job of its own, sees the same cases, and all cells the same seeds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crsbench.case_draws import CaseSet, draw_cases
from crsbench.cells import Labels, Side, read_sides, read_target
from crsbench.evaluation import Scoring, Truth
from crsbench.files import read_parquet
from crsbench.provenance import generator
from crsbench.resampling import Integers, draw_multisets
from crsbench.splits import dropped_classes


def read_drawn_cases(
    dataset: str,
    *,
    index: str | Path,
    split: str | Path,
    shift: Mapping[str, str | Path],
    labels: Labels,
    metrics: Mapping[str, Any],
    n_replicates: int,
    seed: int,
) -> dict[str, CaseSet]:
    """Read the test side of a dataset and its shift targets, and draw their groups.

    Parameters
    ----------
    dataset, index, split
        The dataset, its index and its split.
    shift
        The index of each shift target.
    labels
        What the dataset's labels mean.
    metrics
        The settings ``metrics``.
    n_replicates
        Replicates to draw.
    seed
        What the draws follow from, beside the names.

    Returns
    -------
    The drawn cases by name, the dataset first.
    """
    sides = read_sides(index, split, labels=labels)
    dropped = dropped_classes(sides["train"].targets, sides["test"].targets, classes=labels.classes)
    scoring = Scoring(labels.task, labels.classes, list(dropped), **metrics)
    evaluated = {dataset: (sides["test"], index)} | {
        target: (read_target(path, labels=labels), path) for target, path in shift.items()
    }
    return {
        name: draw_cases(
            Truth(side.samples, side.labels),
            _groups(side, path),
            scoring,
            n_replicates=n_replicates,
            generator=generator("case bootstrap", "cases", name, seed),
        )
        for name, (side, path) in evaluated.items()
    }


def _groups(side: Side, index: str | Path) -> list[str]:
    group_of = dict(read_parquet(index).select("sample", "group").iter_rows())
    return [group_of[sample] for sample in side.samples]


def draw_label_seeds(seeds: Sequence[int], *, n_replicates: int, seed: int) -> dict[int, Integers]:
    """Draw the benchmark's seeds for the crossed bootstrap: how often each, shape (R,)."""
    random = generator("case bootstrap", "label subsamples", seed)
    counts = draw_multisets(len(seeds), n_replicates=n_replicates, generator=random)
    return dict(zip(seeds, counts.T, strict=True))
