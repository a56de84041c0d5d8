"""The test cases of a dataset or shift target, and how often each was drawn.

Law: groups (lesions, patients) are drawn with replacement, as many as there are; all cases of a
group come with it. A class without a positive or a negative in a replicate is left out of that
replicate's macro averages, for all encoders alike, and counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import expit, softmax

from crsbench.errors import DataError
from crsbench.evaluation import Scorer, Scoring, Truth
from crsbench.metrics import binary_top_label, log_odds, top_label
from crsbench.weighted_metrics import (
    GroupDraws,
    draw_groups,
    outcomes_present,
    weighted_auroc,
    weighted_ece,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]

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
    truth, scoring
        Samples and labels, and how predictions of them are scored.
    groups
        Group of each case, 0 to G - 1, shape (N,).
    draws
        How often each group was drawn in R replicates.
    """

    truth: Truth
    scoring: Scoring
    groups: Integers
    draws: GroupDraws

    @cached_property
    def labels(self) -> Floats:
        """One column of 1, 0 and NaN (masked) a class, shape (N, C)."""
        return Scorer(self.truth, self.scoring).truth

    @cached_property
    def kept(self) -> Bools:
        """Which classes count at all, shape (C,)."""
        return Scorer(self.truth, self.scoring).kept

    @cached_property
    def present(self) -> Bools:
        """Which classes count in each replicate, shape (R, C)."""
        return outcomes_present(self.labels, groups=self.groups, draws=self.draws) & self.kept

    def class_auroc(self, logits: Floats) -> Floats:
        """Return the AUROC of each class in each replicate, (R, C); NaN where it does not count."""
        decisions = logits if self.scoring.task == "multilabel" else log_odds(logits)
        values = np.full(self.present.shape, np.nan)
        for column in np.flatnonzero(self.kept & ~np.isnan(logits).any(axis=0)):
            values[:, column] = weighted_auroc(
                decisions[:, column], self.labels[:, column], groups=self.groups, draws=self.draws
            )
        return values

    def ece(self, logits: Floats) -> Floats:
        """Return the expected calibration error in each replicate, (R,); macro over labels."""
        if self.scoring.task != "multilabel":
            return self._column_ece(*top_label(softmax(logits, axis=1), self.truth.labels))
        values = np.full(self.present.shape, np.nan)
        for column in np.flatnonzero(self.kept & ~np.isnan(logits).any(axis=0)):
            positive, outcome = expit(logits[:, column]), self.labels[:, column]
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
    truth: Truth,
    groups: Sequence[str],
    scoring: Scoring,
    *,
    n_replicates: int,
    generator: np.random.Generator,
) -> CaseSet:
    """Draw the groups of one target's test side.

    Parameters
    ----------
    truth
        Samples and labels.
    groups
        The group of each sample: lesion, patient, duplicate cluster.
    scoring
        How predictions are scored.
    generator
        Seeded by the dataset and nothing else, so that every cell sees the same draws.
    """
    if len(groups) != len(truth.samples):
        raise DataError(f"{len(groups)} groups for {len(truth.samples)} test cases")
    names, places = np.unique(np.asarray(groups, str), return_inverse=True)
    draws = draw_groups(len(names), n_replicates=n_replicates, generator=generator)
    return CaseSet(truth, scoring, places, draws)


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
