"""Metrics: arrays in, numbers out, all in float64.

Samples stand along the first axis. A binary metric takes ``(N,)`` and gives one number, or
``(N, K)`` and gives one number for each of K columns (labels, or classes against the rest); a NaN
label masks its sample in its column. A column that has no value (no positive, nothing unmasked)
is NaN; a function with a single result raises `Undefined` with the reason instead. Nothing is
imputed, so that one undefined metric never costs another.

Higher is better, except for the calibration errors, Brier scores, NLL and ordinal MAE.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_expit, log_softmax

from crsbench.arrays import Floats, Integers


class Undefined(Exception):  # noqa: N818 - a result without a value, not a fault
    """A metric has no value on these data; the message is the reason."""


# --- Discrimination ---------------------------------------------------------------------------


def one_hot(labels: NDArray[Any], n_classes: int) -> Floats:
    """Return class indices ``(N,)`` as one binary column a class, ``(N, C)``."""
    labels = np.asarray(labels)
    if labels.size and (labels.min() < 0 or labels.max() >= n_classes):
        raise ValueError(f"class indices must lie in 0…{n_classes - 1}")
    return (labels[:, None] == np.arange(n_classes)).astype(np.float64)


def log_odds(logits: NDArray[Any]) -> Floats:
    r"""Return the one-vs-rest decision values :math:`\log p_c / (1 - p_c)` of a softmax.

    They order the samples as the probabilities do, but neither saturate at 1 nor depend on a
    constant added to a sample's logits.

    Parameters
    ----------
    logits
        ``(N, C)``; minus infinity stands for a class of probability zero.

    Returns
    -------
    ndarray
        ``(N, C)``.
    """
    logits = np.asarray(logits, dtype=np.float64)
    own = np.eye(logits.shape[1], dtype=bool)
    others = np.where(own, -np.inf, logits[:, None, :])
    largest = others.max(axis=2, keepdims=True)
    origin = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):
        log_sum = np.log(np.exp(others - origin).sum(axis=2)) + origin[:, :, 0]
    return logits - log_sum


@dataclass(frozen=True)
class Ranking:
    """How many positives and negatives score at least as high as each ranked sample.

    Row i counts over the i + 1 highest scores, less a tie that is not complete by then; so every
    row is a point of the ROC curve, and ties count one half in the area under it.

    Attributes
    ----------
    true_positives, false_positives
        ``(N,)`` or ``(N, K)``, not decreasing.
    """

    true_positives: Integers
    false_positives: Integers

    @property
    def n_positive(self) -> Integers:
        """Number of positives, one a column."""
        return self.true_positives[-1]

    @property
    def n_negative(self) -> Integers:
        """Number of negatives, one a column."""
        return self.false_positives[-1]


def rank(scores: ArrayLike, labels: ArrayLike) -> Ranking:
    """Rank samples by score: the one sort that AUROC, AP and sensitivity share.

    Parameters
    ----------
    scores
        ``(N,)`` or ``(N, K)``, higher for positives; infinities are allowed.
    labels
        1 positive, 0 negative, NaN masked; of the same shape.
    """
    scores, labels = _aligned_binary(scores, labels)
    places = _flat(np.argsort(-scores, axis=0))
    ordered, truth = scores.take(places), labels.take(places)
    ends_tie = np.ones(ordered.shape, dtype=bool)
    ends_tie[:-1] = ordered[:-1] != ordered[1:]
    return Ranking(_held(truth == 1, ends_tie), _held(truth == 0, ends_tie))


def _flat(order: Integers) -> Integers:
    """Return places in the flat array of an order ``(N,)`` or ``(N, K)`` of each column's rows.

    For `take`: `numpy.take_along_axis` makes indices for every axis, several times as slowly.
    """
    n_columns = order.size // len(order)
    places: Integers = order * n_columns
    places += np.arange(n_columns).reshape(order.shape[1:])
    return places


def _held(events: NDArray[np.bool_], ends_tie: NDArray[np.bool_]) -> Integers:
    """Count events down the ranking, holding the count until a tie is complete."""
    counts = np.cumsum(events, axis=0, dtype=np.int64)
    if ends_tie.all():
        return counts
    return np.maximum.accumulate(np.where(ends_tie, counts, 0), axis=0)


def auroc(ranking: Ranking) -> Floats:
    """Area under the ROC curve: P(positive above negative), ties one half (mid-ranks).

    NaN for a column without a positive or without a negative. The sums are of integers, hence
    exact.
    """
    hits, alarms = ranking.true_positives, ranking.false_positives
    trapezoids = alarms[1:] - alarms[:-1]
    trapezoids *= hits[1:] + hits[:-1]
    twice_area = alarms[0] * hits[0] + trapezoids.sum(axis=0)
    return _ratio(twice_area, 2 * ranking.n_positive * ranking.n_negative)


def average_precision(ranking: Ranking) -> Floats:
    """Precision averaged over the steps of recall, without interpolation.

    NaN for a column without a positive.
    """
    hits = ranking.true_positives
    called = hits + ranking.false_positives
    gained = hits / np.maximum(called, 1, out=called)
    gained *= _steps(hits)
    return _ratio(gained.sum(axis=0), ranking.n_positive)


def sensitivity_at_specificity(ranking: Ranking, *, specificity: float) -> Floats:
    """Largest sensitivity among the thresholds whose specificity is at least the given one.

    No interpolation between thresholds. NaN for a column without a positive or a negative.
    """
    n_negative = ranking.n_negative
    reached = _ratio(n_negative - ranking.false_positives, n_negative) >= specificity
    hits = np.where(reached, ranking.true_positives, 0).max(axis=0)
    return _ratio(np.where(n_negative > 0, hits, np.nan), ranking.n_positive)


def macro(values: Floats, *, names: Sequence[str]) -> float:
    """Average one value a class; undefined if there is none or any is not finite.

    Parameters
    ----------
    values, names
        ``(K,)``: the classes that count. Which do is decided beforehand, for all encoders alike.
    """
    if len(values) == 0:
        raise Undefined("no class has both a positive and a negative")
    lacking = [name for name, value in zip(names, values, strict=True) if not np.isfinite(value)]
    if lacking:
        raise Undefined(f"no finite value for {', '.join(lacking)}")
    return float(np.mean(values))


# --- Confidence and calibration ---------------------------------------------------------------


def top_label(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Floats, Floats]:
    """Return the largest probability, and whether its class is the right one (1 or 0).

    Parameters
    ----------
    probabilities
        ``(N, C)``; of equal ones the first class is predicted.
    labels
        ``(N,)`` class indices.
    """
    probabilities, labels = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    if probabilities.shape[:1] != labels.shape:
        raise ValueError(f"probabilities {probabilities.shape}, but labels {labels.shape}")
    correct = probabilities.argmax(axis=1) == labels
    return probabilities.max(axis=1), correct.astype(np.float64)


def binary_top_label(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Floats, Floats]:
    """Return max(p, 1 - p), and whether p > 1/2 is the label; both NaN where masked.

    Parameters
    ----------
    probabilities, labels
        ``(N,)`` or ``(N, L)``: of the positive class; 1, 0 or NaN.
    """
    probabilities, labels = _aligned_binary(probabilities, labels)
    masked = np.isnan(labels)
    confidence = np.where(masked, np.nan, np.maximum(probabilities, 1 - probabilities))
    correct = np.where(masked, np.nan, (probabilities > 0.5) == (labels == 1))
    return confidence, correct


def masked_mean(values: ArrayLike) -> Floats:
    """Average over the samples that are not NaN; NaN for a column that is all NaN."""
    values = np.asarray(values, dtype=np.float64)
    return _ratio(np.nansum(values, axis=0), np.count_nonzero(~np.isnan(values), axis=0))


def expected_calibration_error(confidence: ArrayLike, outcome: ArrayLike, *, n_bins: int) -> Floats:
    """Average the gap of confidence and outcome over bins of equal width (ECE).

    The bins are (b/n, (b+1)/n], the first closed at 0. A bin counts with its share of the samples
    and with its mean confidence, not its centre.

    Parameters
    ----------
    confidence
        ``(N,)`` or ``(N, K)`` probabilities of the outcome.
    outcome
        What happened: 1, 0, or NaN for masked. With `top_label` the outcome is being right, with
        the probability of a positive it is being positive.
    """
    confidence, outcome = _aligned_binary(confidence, outcome)
    _check_probabilities(confidence, outcome)
    edges = np.arange(n_bins + 1) / n_bins
    bins = np.searchsorted(edges, confidence, side="left") - 1
    return _calibration_gap(bins, confidence - outcome, n_bins=n_bins)


def adaptive_calibration_error(
    confidence: ArrayLike, outcome: ArrayLike, *, n_groups: int
) -> Floats:
    """Average the gap of confidence and outcome over groups of equal mass (adaptive ECE).

    A group is weighted by its count. Samples of equal confidence are kept in one group, that of
    their mid-rank, so that the order of rows cannot matter. Fewer samples than groups make fewer
    groups. Parameters as in `expected_calibration_error`.
    """
    confidence, outcome = _aligned_binary(confidence, outcome)
    _check_probabilities(confidence, outcome)
    masked = np.isnan(outcome)
    twice_mid_rank = _twice_mid_ranks(np.where(masked, np.inf, confidence))
    n_samples = np.maximum(np.count_nonzero(~masked, axis=0), 1)
    groups = n_groups * twice_mid_rank // (2 * n_samples)
    return _calibration_gap(groups, confidence - outcome, n_bins=n_groups)


def _twice_mid_ranks(values: Floats) -> Integers:
    """Return twice the mean 0-based rank plus one (so it is whole), ties sharing theirs."""
    n = len(values)
    order = np.argsort(values, axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    changes = ordered[1:] != ordered[:-1]
    position = np.arange(n).reshape(-1, *[1] * (values.ndim - 1))
    starts, ends = np.zeros(values.shape, dtype=np.int64), np.full(values.shape, n)
    starts[1:] = np.where(changes, position[1:], 0)
    ends[:-1] = np.where(changes, position[1:], n)
    first = np.maximum.accumulate(starts, axis=0)
    last = np.minimum.accumulate(ends[::-1], axis=0)[::-1]
    ranks = np.empty(values.shape, dtype=np.int64)
    np.put_along_axis(ranks, order, first + last, axis=0)
    return ranks


def _calibration_gap(bins: Integers, excess: Floats, *, n_bins: int) -> Floats:
    """Sum, over the bins, |sum of confidence - outcome| in it, and divide by the samples."""
    valid = ~np.isnan(excess)
    n_columns = math.prod(excess.shape[1:])
    columns = np.clip(bins, 0, n_bins - 1).reshape(len(bins), n_columns)
    places = columns + n_bins * np.arange(n_columns)
    weights = np.where(valid, excess, 0.0).ravel()
    sums = np.bincount(places.ravel(), weights=weights, minlength=n_bins * n_columns)
    gaps = np.abs(sums).reshape(n_columns, n_bins).sum(axis=1)
    return _ratio(gaps.reshape(excess.shape[1:]), np.count_nonzero(valid, axis=0))


# --- Proper scores ----------------------------------------------------------------------------


def brier(probabilities: ArrayLike, labels: NDArray[Any]) -> float:
    """Half the mean squared distance from the one-hot truth, in [0, 1] for any C.

    Parameters
    ----------
    probabilities, labels
        ``(N, C)`` and ``(N,)`` class indices.
    """
    probabilities = np.asarray(probabilities, dtype=np.float64)
    errors = probabilities - one_hot(labels, probabilities.shape[1])
    return float(0.5 * np.mean((errors**2).sum(axis=1)))


def binary_brier(probabilities: ArrayLike, labels: ArrayLike) -> Floats:
    """Mean squared error of the probability of a positive, per column."""
    probabilities, labels = _aligned_binary(probabilities, labels)
    return masked_mean((probabilities - labels) ** 2)


def nll(logits: ArrayLike, labels: NDArray[Any]) -> float:
    """Mean negative log-likelihood of the right class, in nats.

    Parameters
    ----------
    logits, labels
        ``(N, C)`` and ``(N,)`` class indices. Undefined if a class that occurs was given
        probability zero.
    """
    log_likelihood = log_softmax(np.asarray(logits, dtype=np.float64), axis=1)
    value = -float(np.mean(log_likelihood[np.arange(len(labels)), labels]))
    if not np.isfinite(value):
        raise Undefined("a class that occurs has probability zero")
    return value


def binary_nll(logits: ArrayLike, labels: ArrayLike) -> Floats:
    """Mean negative log-likelihood, per column; infinite where certainty was wrong."""
    logits, labels = _aligned_binary(logits, labels)
    losses = -log_expit(np.where(labels == 1, logits, -logits))
    return masked_mean(np.where(np.isnan(labels), np.nan, losses))


# --- Ordinal grades ---------------------------------------------------------------------------


def quadratic_weighted_kappa(predicted: NDArray[Any], labels: NDArray[Any]) -> float:
    r"""Cohen's kappa with weights :math:`(i - j)^2` on the grades as they are.

    Computed from the squared differences themselves, so that grades that do not occur keep their
    place. Undefined where truth and prediction are one and the same constant.

    Parameters
    ----------
    predicted, labels
        ``(N,)`` grades 0, 1, ….
    """
    predicted, labels = _aligned(predicted, labels)
    observed = np.mean((predicted - labels) ** 2)
    by_chance = np.mean(predicted**2) + np.mean(labels**2) - 2 * predicted.mean() * labels.mean()
    if predicted.min() == predicted.max() == labels.min() == labels.max():
        raise Undefined("truth and prediction are the same constant")
    return float(1 - observed / by_chance)


def ordinal_mae(predicted: NDArray[Any], labels: NDArray[Any]) -> float:
    """Mean absolute difference of grades ``(N,)``."""
    predicted, labels = _aligned(predicted, labels)
    return float(np.mean(np.abs(predicted - labels)))


# --- Shared arithmetic ------------------------------------------------------------------------


def _aligned(values: ArrayLike, labels: ArrayLike) -> tuple[Floats, Floats]:
    values, labels = np.asarray(values, np.float64), np.asarray(labels, np.float64)
    if values.shape != labels.shape:
        raise ValueError(f"values of shape {values.shape}, but labels of shape {labels.shape}")
    if len(values) == 0:
        raise ValueError("no samples")
    if (np.isnan(values) & ~np.isnan(labels)).any():
        raise ValueError("a value is NaN where its label is not")
    return values, labels


def _aligned_binary(values: ArrayLike, labels: ArrayLike) -> tuple[Floats, Floats]:
    values, labels = _aligned(values, labels)
    if not ((labels == 0) | (labels == 1) | np.isnan(labels)).all():
        raise ValueError("binary labels must be 1, 0, or NaN for masked")
    return values, labels


def _check_probabilities(confidence: Floats, outcome: Floats) -> None:
    used = confidence[~np.isnan(outcome)]
    if used.size and not (used.min() >= 0 and used.max() <= 1):
        raise ValueError(f"confidences must lie in [0, 1], not [{used.min()}, {used.max()}]")


def _steps(counts: Integers) -> Integers:
    """Return the counts' increments from row to row, the first from 0."""
    steps = counts.copy()
    steps[1:] -= counts[:-1]
    return steps


def _ratio(numerator: ArrayLike, denominator: ArrayLike) -> Floats:
    """Divide, NaN where the denominator is zero."""
    numerator, denominator = np.broadcast_arrays(numerator, denominator)
    blank = np.full(numerator.shape, np.nan)
    return np.divide(numerator, denominator, out=blank, where=denominator != 0)
