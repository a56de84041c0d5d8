"""Evaluation: predictions become run records, each distinct fit scored once.

Which classes count is decided by the data alone: a class that is dropped for the dataset, or
that has no positive or no negative among a target's samples, is left out of every macro average of
that target, for all encoders, fractions, conditions and seeds alike, and named in the record.
A metric without a value is null with its reason in ``undefined``; a metric that does not apply to
the task is null without one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, SupportsFloat

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import expit, softmax

from crsbench.arrays import Bools, Floats
from crsbench.metrics import (
    Undefined,
    adaptive_calibration_error,
    auroc,
    average_precision,
    binary_brier,
    binary_nll,
    binary_top_label,
    brier,
    expected_calibration_error,
    log_odds,
    macro,
    masked_mean,
    nll,
    ordinal_mae,
    quadratic_weighted_kappa,
    rank,
    sensitivity_at_specificity,
    top_label,
)
from crsbench.predictions import CellPredictions, Fits, SetKey
from crsbench.probes.base import SCORING
from crsbench.records import METRICS, RUN_RECORD, RunKey
from crsbench.sides import Labels, Side
from crsbench.splits import Task, dropped_classes


@dataclass(frozen=True)
class Scoring:
    """How a dataset's predictions are scored.

    Attributes
    ----------
    classes
        Names of the C classes or labels.
    dropped
        Those left out of every macro average; see `crsbench.splits.dropped_classes`.
    n_bins, specificity, binary_confidence
        The settings of that name. ``ece`` of multi-label data follows `binary_confidence`;
        ``ece_max_confidence`` is that of max(p, 1 - p).
    n_votes
        How many votes the probabilities are shares of, or None if they are no shares. Equal shares
        are then equal numbers: they tie, and lie in one bin, whatever their logits were rounded to.
    """

    task: Task
    classes: Sequence[str]
    dropped: Sequence[str]
    n_bins: int
    specificity: float
    binary_confidence: Literal["positive", "max"]
    n_votes: int | None = None

    @classmethod
    def of(cls, labels: Labels, sides: Mapping[str, Side], metrics: Mapping[str, Any]) -> Self:
        """Take what a dataset's labels mean, its sides, and `Settings.scoring_settings`."""
        dropped = dropped_classes(sides["train"].truth, sides["test"].truth, classes=labels.classes)
        return cls(labels.task, labels.classes, list(dropped), **metrics)

    def probabilities(self, logits: Floats) -> Floats:
        """Return the probabilities of classes, or of labels being positive, ``(N, C)``."""
        values = expit(logits) if self.task == "multilabel" else softmax(logits, axis=1)
        return values if self.n_votes is None else np.rint(values * self.n_votes) / self.n_votes

    def decisions(self, logits: Floats) -> Floats:
        """Return what the samples are ranked by, one class or label a column, ``(N, C)``."""
        if self.n_votes is not None:
            return self.probabilities(logits)
        return logits if self.task == "multilabel" else log_odds(logits)


@dataclass
class Scores:
    """The metrics of one evaluation, and why others have no value.

    Attributes
    ----------
    class_auroc
        ``(C,)``, NaN where undefined.
    values
        The defined metrics.
    undefined
        ``metric: reason`` of the others that apply to the task.
    """

    class_auroc: Floats
    values: dict[str, float] = field(default_factory=dict)
    undefined: list[str] = field(default_factory=list)

    def add(
        self, name: str, metric: Callable[..., SupportsFloat], *args: Any, **kwargs: Any
    ) -> None:
        """Compute a metric; keep its value, or the reason why it has none."""
        try:
            self.values[name] = float(metric(*args, **kwargs))
        except Undefined as reason:
            self.undefined.append(f"{name}: {reason}")


def _has_both(truth: Floats) -> NDArray[np.bool_]:
    return (truth == 1).any(axis=0) & (truth == 0).any(axis=0)


class Scorer:
    """Scores logits against the truth of one target.

    Parameters
    ----------
    side
        The target's samples and labels.
    scoring
        How to score.

    Attributes
    ----------
    truth
        ``(N, C)`` of 1, 0, and NaN for masked.
    n_positive, n_negative
        ``(C,)`` samples of each class.
    kept
        ``(C,)`` whether the class counts.
    kept_names, dropped_names
        The classes that count, and the others.
    """

    def __init__(self, side: Side, scoring: Scoring) -> None:
        self.truth = side.truth
        self.n_positive = np.count_nonzero(self.truth == 1, axis=0)
        self.n_negative = np.count_nonzero(self.truth == 0, axis=0)
        self.kept = _has_both(self.truth) & ~np.isin(scoring.classes, scoring.dropped)
        self._labels = side.labels
        self._scoring = scoring
        self.kept_names = [
            name for name, kept in zip(scoring.classes, self.kept, strict=True) if kept
        ]
        self.dropped_names = [name for name in scoring.classes if name not in self.kept_names]

    def score(self, logits: NDArray[np.floating]) -> Scores:
        """Return the metrics of logits ``(N, C)``."""
        wide = np.asarray(logits, dtype=np.float64)
        fitted = self.kept & ~np.isnan(wide).any(axis=0)
        scores = self._discrimination(self._scoring.decisions(wide), fitted)
        if self._scoring.task == "multilabel":
            self._add_label_metrics(scores, wide, fitted)
        else:
            self._add_class_metrics(scores, wide)
        return scores

    def _discrimination(self, decisions: Floats, fitted: Bools) -> Scores:
        ranking = rank(decisions[:, fitted], self.truth[:, fitted])
        specificity = self._scoring.specificity
        class_auroc = _spread(auroc(ranking), fitted)
        scores = Scores(class_auroc)
        columns = {
            "macro_auroc": class_auroc[fitted],
            "macro_auprc": average_precision(ranking),
            "sensitivity_at_specificity": sensitivity_at_specificity(
                ranking, specificity=specificity
            ),
        }
        self._add_macros(scores, columns, fitted)
        return scores

    def _add_macros(self, scores: Scores, columns: Mapping[str, Floats], fitted: Bools) -> None:
        """Average over the kept classes; undefined where one of them was not fitted."""
        for name, values in columns.items():
            of_kept = _spread(values, fitted)[self.kept]
            scores.add(name, macro, of_kept, names=self.kept_names)

    def _add_class_metrics(self, scores: Scores, logits: Floats) -> None:
        """One label of several classes: top-label confidence, over all samples."""
        labels, n_bins = self._labels, self._scoring.n_bins
        probabilities = self._scoring.probabilities(logits)
        confidence, correct = top_label(probabilities, labels)
        scores.add("ece", expected_calibration_error, confidence, correct, n_bins=n_bins)
        scores.add("adaptive_ece", adaptive_calibration_error, confidence, correct, n_groups=n_bins)
        scores.add("brier", brier, probabilities, labels)
        scores.add("nll", nll, logits, labels)
        scores.add("accuracy", masked_mean, correct)
        scores.add("mean_confidence", masked_mean, confidence)
        if self._scoring.task == "ordinal":
            grades = probabilities.argmax(axis=1)
            scores.add("qwk", quadratic_weighted_kappa, grades, labels)
            scores.add("ordinal_mae", ordinal_mae, grades, labels)

    def _add_label_metrics(self, scores: Scores, logits: Floats, fitted: Bools) -> None:
        """Several binary labels: each over its unmasked samples, then the macro average."""
        truth, logits, n_bins = self.truth[:, fitted], logits[:, fitted], self._scoring.n_bins
        positive = self._scoring.probabilities(logits)
        confidence, correct = binary_top_label(positive, truth)
        of_positive = expected_calibration_error(positive, truth, n_bins=n_bins)
        of_maximum = expected_calibration_error(confidence, correct, n_bins=n_bins)
        follows_positive = self._scoring.binary_confidence == "positive"
        columns = {
            "ece": of_positive if follows_positive else of_maximum,
            "ece_max_confidence": of_maximum,
            "adaptive_ece": adaptive_calibration_error(positive, truth, n_groups=n_bins),
            "brier": binary_brier(positive, truth),
            "nll": binary_nll(logits, truth),
            "accuracy": masked_mean(correct),
            "mean_confidence": masked_mean(confidence),
        }
        self._add_macros(scores, columns, fitted)


def _spread(values: Floats, places: Bools) -> Floats:
    """Return values at the places that are true, NaN elsewhere."""
    spread = np.full(len(places), np.nan)
    spread[places] = values
    return spread


def evaluate_cell(
    predictions: pl.DataFrame,
    fits: pl.DataFrame,
    *,
    keys: Iterable[RunKey],
    evaluated: Mapping[str, Side],
    scoring: Scoring,
    identity: Mapping[str, Mapping[str, Any]],
) -> pl.DataFrame:
    """Make the run records of one cell.

    Parameters
    ----------
    predictions, fits
        As `crsbench.probes.cell.probe_cell` returns them.
    keys
        The records to make, in their order.
    evaluated
        Samples and labels of each target.
    identity
        For each target the columns of `RUN_RECORD` that say what the records depend on.

    Returns
    -------
    DataFrame
        `RUN_RECORD`, one row per key. A failed fit has null metrics, its status and its reason.

    Raises
    ------
    DataError
        If a fit or a prediction that a key needs is missing, or samples are not the target's.
    """
    scorers = {target: Scorer(side, scoring) for target, side in evaluated.items()}
    of_cell = CellPredictions(predictions)
    fits_of_cell = Fits(fits)
    scored: dict[SetKey, dict[str, Any]] = {}
    rows = []
    for key in keys:
        fit = fits_of_cell.at(key.label_fraction, key.seed)
        distinct = SetKey(
            key.label_fraction, fit["fit_seed"], key.target, key.perturbation, key.severity
        )
        if distinct not in scored:
            side, scorer = evaluated[key.target], scorers[key.target]
            scores = _score_set(distinct, fit, of_cell, side, scorer)
            scored[distinct] = _score_columns(scores, scorer)
        rows.append(
            key._asdict() | _fit_columns(fit) | scored[distinct] | dict(identity[key.target])
        )
    return pl.DataFrame(rows, schema=RUN_RECORD)


def _score_set(
    key: SetKey,
    fit: Mapping[str, Any],
    predictions: CellPredictions,
    evaluated: Side,
    scorer: Scorer,
) -> Scores:
    if fit["status"] not in SCORING:
        nothing = np.full(len(scorer.kept), np.nan)
        return Scores(nothing, undefined=[f"all metrics: {fit['status']}: {fit['reason']}"])
    return scorer.score(predictions.logits(key, evaluated.samples))


def _fit_columns(fit: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "n_train": fit["n_train"],
        "fit_seed": fit["fit_seed"],
        "fit_status": fit["status"],
        "fit_reason": fit["reason"],
        "iterations": fit["iterations"],
        "gradient_norm": fit["gradient_norm"],
    }


def _score_columns(scores: Scores, scorer: Scorer) -> dict[str, Any]:
    return {
        "n_evaluated": len(scorer.truth),
        **dict.fromkeys(METRICS),
        **scores.values,
        "class_auroc": [None if np.isnan(value) else value for value in scores.class_auroc],
        "class_n_positive": scorer.n_positive.tolist(),
        "class_n_negative": scorer.n_negative.tolist(),
        "dropped_classes": scorer.dropped_names,
        "undefined": scores.undefined,
    }
