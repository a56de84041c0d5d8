"""The test cases of a dataset or shift target, and how often each was drawn.

Law: groups (lesions, patients) are drawn with replacement, as many as there are; all cases of a
group come with it. A draw follows from the seed and the name of what is drawn, and from nothing
else, so that every cell of a dataset, in a job of its own, sees the same cases, and all cells the
same seeds. A class without a positive or a negative in a replicate is left out of that
replicate's macro averages, for all encoders alike, and counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from crsbench.arrays import Bools, Floats, Integers
from crsbench.digests import generator
from crsbench.errors import DataError
from crsbench.evaluation import Scorer, Scoring
from crsbench.files import read_parquet
from crsbench.metrics import binary_top_label, top_label
from crsbench.resampling import draw_multisets
from crsbench.sides import Labels, Side, read_evaluated, read_sides
from crsbench.weighted_metrics import (
    GroupDraws,
    draw_groups,
    outcomes_present,
    weighted_auroc,
    weighted_ece,
)

#: Above this share of replicates without some class, nothing is said.
MOST_ABSENT = 0.05

ABSENCES = pl.Schema(
    {
        "dataset": pl.String(),
        "target": pl.String(),
        "class": pl.String(),
        "n_absent": pl.Int64(),
        "n_replicates": pl.Int64(),
    }
)


@dataclass(frozen=True)
class CaseSet:
    """The test cases of one target, their groups, and how often each group was drawn.

    Attributes
    ----------
    side, scoring
        Samples and labels, and how predictions of them are scored.
    groups
        Group of each case, 0 to G - 1, shape (N,).
    draws
        How often each group was drawn in R replicates.
    """

    side: Side
    scoring: Scoring
    groups: Integers
    draws: GroupDraws

    @cached_property
    def kept(self) -> Bools:
        """Which classes count at all, shape (C,)."""
        return Scorer(self.side, self.scoring).kept

    @cached_property
    def present(self) -> Bools:
        """Which classes count in each replicate, shape (R, C)."""
        return outcomes_present(self.side.truth, groups=self.groups, draws=self.draws) & self.kept

    def class_auroc(self, logits: Floats) -> Floats:
        """Return the AUROC of each class in each replicate, (R, C); NaN where it does not count."""
        decisions = self.scoring.decisions(logits)
        values = np.full(self.present.shape, np.nan)
        for column in np.flatnonzero(self.kept & ~np.isnan(logits).any(axis=0)):
            values[:, column] = weighted_auroc(
                decisions[:, column],
                self.side.truth[:, column],
                groups=self.groups,
                draws=self.draws,
            )
        return values

    def ece(self, logits: Floats) -> Floats:
        """Return the expected calibration error in each replicate, (R,); macro over labels."""
        probabilities = self.scoring.probabilities(logits)
        if self.scoring.task != "multilabel":
            return self._column_ece(*top_label(probabilities, self.side.labels))
        values = np.full(self.present.shape, np.nan)
        for column in np.flatnonzero(self.kept & ~np.isnan(logits).any(axis=0)):
            positive, outcome = probabilities[:, column], self.side.truth[:, column]
            if self.scoring.binary_confidence == "max":
                positive, outcome = binary_top_label(positive, outcome)
            values[:, column] = self._column_ece(positive, outcome)
        return macro_average(values, self.present)

    def _column_ece(self, confidence: Floats, outcome: Floats) -> Floats:
        return weighted_ece(
            np.where(np.isnan(outcome), 0.0, confidence),
            outcome,
            groups=self.groups,
            draws=self.draws,
            n_bins=self.scoring.n_bins,
        )


def macro_average(values: Floats, present: Bools) -> Floats:
    """Return the mean over the classes present in each replicate, (R,), of values (R, C).

    NaN where none is present, or where a present one has no value.
    """
    total = np.where(present, values, 0.0).sum(axis=1)
    n_present = present.sum(axis=1)
    return total / np.where(n_present > 0, n_present, np.nan)


def draw_cases(
    side: Side,
    groups: Sequence[str],
    scoring: Scoring,
    *,
    n_replicates: int,
    generator: np.random.Generator,
) -> CaseSet:
    """Draw the groups of one target's test side.

    Parameters
    ----------
    side
        Samples and labels.
    groups
        The group of each sample: lesion, patient, duplicate cluster.
    scoring
        How predictions are scored.
    generator
        Seeded by the dataset and nothing else, so that every cell sees the same draws.
    """
    if len(groups) != len(side.samples):
        raise DataError(f"{len(groups)} groups for {len(side.samples)} test cases")
    names, places = np.unique(np.asarray(groups, str), return_inverse=True)
    draws = draw_groups(len(names), n_replicates=n_replicates, generator=generator)
    return CaseSet(side, scoring, places, draws)


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
        As `Settings.scoring_settings` returns them.
    n_replicates
        Replicates to draw.
    seed
        What the draws follow from, beside the names.

    Returns
    -------
    The drawn cases by name, the dataset first.
    """
    sides = read_sides(index, split, labels=labels)
    scoring = Scoring.of(labels, sides, metrics)
    evaluated = read_evaluated(dataset, sides["test"], shift=shift, labels=labels)
    indexes = {dataset: index, **shift}
    return {
        name: draw_cases(
            side,
            _groups(side, indexes[name]),
            scoring,
            n_replicates=n_replicates,
            generator=generator("case bootstrap", "cases", name, seed),
        )
        for name, side in evaluated.items()
    }


def _groups(side: Side, index: str | Path) -> list[str]:
    group_of = dict(read_parquet(index).select("sample", "group").iter_rows())
    return [group_of[sample] for sample in side.samples]


def draw_label_seeds(seeds: Sequence[int], *, n_replicates: int, seed: int) -> dict[int, Integers]:
    """Draw the benchmark's seeds for the crossed bootstrap: how often each, shape (R,)."""
    random = generator("case bootstrap", "label subsamples", seed)
    counts = draw_multisets(len(seeds), n_replicates=n_replicates, generator=random)
    return dict(zip(seeds, counts.T, strict=True))


def count_absences(dataset: str, cases: Mapping[str, CaseSet]) -> pl.DataFrame:
    """Count the replicates that lack a class, at a dataset and at its shift targets.

    Returns
    -------
    `ABSENCES`: one row per target and class that counts, and one with class null for any class.
    """
    rows = []
    for target, case_set in cases.items():
        absent = ~case_set.present[:, case_set.kept]
        names = np.array(case_set.scoring.classes)[case_set.kept].tolist()
        counts = [*absent.sum(axis=0).tolist(), int(absent.any(axis=1).sum())]
        for name, n_absent in zip([*names, None], counts, strict=True):
            rows.append((dataset, target, name, n_absent, len(absent)))
    return pl.DataFrame(rows, schema=ABSENCES, orient="row")


def too_often_absent(absences: pl.DataFrame, datasets: Iterable[str]) -> str | None:
    """Say which dataset lacks a class in too many replicates; None if there is none."""
    any_class = absences.filter(
        pl.col("class").is_null()
        & pl.col("dataset").is_in(list(datasets))
        & (pl.col("n_absent") > MOST_ABSENT * pl.col("n_replicates"))
    )
    if any_class.is_empty():
        return None
    _, target, _, n_absent, n_replicates = any_class.row(0)
    return (
        f"a class of {target} is absent from {n_absent} of {n_replicates} replicates, "
        f"more than {MOST_ABSENT:.0%}"
    )
