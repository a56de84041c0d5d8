"""One cell, one probe: all its fits, and the logits of every evaluated set under each of them.

Features are standardised with the statistics of the whole train split, whatever the fraction. Fits
on the same rows are made once: at 100 % labels that is one fit for all seeds. A fit that failed
has a row among the fits and no logits; the others go on.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench.errors import DataError
from crsbench.features.table import Standardiser, check_finite, read_features
from crsbench.files import read_metadata
from crsbench.probes.base import SCORING, Fit
from crsbench.records import CLEAN

FitProbe = Callable[[NDArray[np.float64], NDArray[Any]], Fit]

FITS = pl.Schema(
    {
        "label_fraction": pl.Float64(),
        "seed": pl.Int64(),
        "fit_seed": pl.Int64(),
        "n_train": pl.Int64(),
        "status": pl.String(),
        "reason": pl.String(),
        "iterations": pl.Int64(),
        "gradient_norm": pl.Float64(),
        "objective": pl.Float64(),
    }
)


def predictions_schema(n_classes: int) -> pl.Schema:
    """Return the schema of a predictions table: one row per distinct fit, set and sample."""
    return pl.Schema(
        {
            "label_fraction": pl.Float64(),
            "seed": pl.Int64(),
            "target": pl.String(),
            "side": pl.String(),
            "perturbation": pl.String(),
            "severity": pl.Int64(),
            "sample": pl.String(),
            "logits": pl.Array(pl.Float32(), n_classes),
        }
    )


@dataclass(frozen=True)
class TrainingSide:
    """The train split of a dataset.

    Attributes
    ----------
    samples
        N identifiers.
    features
        ``(N, D)``, not standardised.
    labels
        ``(N,)`` class indices, or ``(N, L)`` of 1, 0, and NaN for masked.
    """

    samples: Sequence[str]
    features: NDArray[np.floating]
    labels: NDArray[Any]


@dataclass(frozen=True)
class EvaluatedSet:
    """Samples of one side of one dataset under one condition, ``features`` ``(n, D)``."""

    target: str
    side: str
    perturbation: str
    severity: int
    samples: Sequence[str]
    features: NDArray[np.floating]

    def __str__(self) -> str:
        return f"{self.target}, {self.side}, {self.perturbation} severity {self.severity}"


def read_evaluated_sets(
    dataset: str,
    *,
    clean: Path,
    perturbed: Path,
    samples: Mapping[str, Sequence[str]],
    conditions: Iterable[tuple[str, int]],
    shift: Mapping[str, tuple[Path, Sequence[str]]],
) -> Iterator[EvaluatedSet]:
    """Read the evaluated sets of a cell from its feature tables, one at a time.

    Parameters
    ----------
    clean, perturbed
        The encoder's feature tables of `dataset`.
    samples
        Identifiers on the sides ``calibration`` and ``test``.
    conditions
        ``(perturbation, severity)`` of the test side, clean among them.
    shift
        Feature table and samples of each shift target.
    """
    for side, condition in [("calibration", (CLEAN, 0)), *(("test", item) for item in conditions)]:
        is_clean = condition[0] == CLEAN
        names, features = read_features(
            clean if is_clean else perturbed,
            samples=samples[side],
            condition=None if is_clean else condition,
        )
        yield EvaluatedSet(dataset, side, *condition, names, features)
    for target, (path, wanted) in shift.items():
        yield EvaluatedSet(target, "test", CLEAN, 0, *read_features(path, samples=wanted))


def probe_cell(
    train: TrainingSide,
    evaluated: Iterable[EvaluatedSet],
    *,
    fit: FitProbe,
    subsamples: pl.DataFrame,
    label_fractions: Sequence[float],
    seeds: Sequence[int],
    n_classes: int,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Fit a probe on every label subsample of a cell and score all evaluated sets.

    Parameters
    ----------
    train
        The train split.
    evaluated
        What to score, read one at a time.
    fit
        Fits standardised features ``(n, D)`` and their labels.
    subsamples
        Columns seed, sample, label_fraction: the smallest fraction whose subsample holds it.

    Returns
    -------
    predictions
        `predictions_schema`, in the order of fractions, seeds, evaluated sets, samples. ``seed``
        is the first of the seeds that share the fit.
    fits
        `FITS`, one row per fraction and seed.

    Raises
    ------
    DataError
        If a subsample is empty or has samples outside the train split, or if features are not
        finite or not of the same width.
    """
    check_finite(train.features, train.samples, where="train split")
    standardiser = Standardiser.fit(train.features)
    features = standardiser.transform(train.features)
    by_rows: dict[bytes, Fit] = {}
    distinct: dict[tuple[float, int], Fit] = {}
    rows_of_fits = []
    for fraction in label_fractions:
        first_seed: dict[bytes, int] = {}
        for seed, rows in _subsample_rows(subsamples, train.samples, fraction, seeds).items():
            identity = rows.tobytes()
            if identity not in by_rows:
                by_rows[identity] = fit(features[rows], train.labels[rows])
            fitted, fit_seed = by_rows[identity], first_seed.setdefault(identity, seed)
            distinct[fraction, fit_seed] = fitted
            rows_of_fits.append((fraction, seed, fit_seed, *_diagnostics(fitted)))
    predictions = _score_sets(evaluated, distinct, standardiser, n_classes=n_classes)
    return predictions, pl.DataFrame(rows_of_fits, schema=FITS, orient="row")


def _subsample_rows(
    subsamples: pl.DataFrame, samples: Sequence[str], fraction: float, seeds: Sequence[int]
) -> dict[int, NDArray[np.int64]]:
    """Return the training rows of each seed at a fraction, in the order of the train split."""
    places = pl.DataFrame({"sample": samples, "row": np.arange(len(samples))})
    chosen = subsamples.filter(pl.col("label_fraction") <= fraction)
    placed = chosen.join(places, on="sample", how="left").sort("row")
    foreign = placed.filter(pl.col("row").is_null())
    if not foreign.is_empty():
        seed, sample = foreign.select("seed", "sample").row(0)
        raise DataError(f"subsample of seed {seed}: {sample} is not in the train split")
    by_seed = {seed: placed.filter(pl.col("seed") == seed)["row"].to_numpy() for seed in seeds}
    for seed, rows in by_seed.items():
        if rows.size == 0:
            raise DataError(f"no training rows for seed {seed} at label fraction {fraction}")
    return by_seed


def _diagnostics(fitted: Fit) -> tuple[int, str, str | None, int, float | None, float | None]:
    return (
        fitted.n_train,
        fitted.status,
        fitted.reason,
        fitted.iterations,
        _finite_or_null(fitted.gradient_norm),
        _finite_or_null(fitted.objective),
    )


def _finite_or_null(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _score_sets(
    evaluated: Iterable[EvaluatedSet],
    fits: Mapping[tuple[float, int], Fit],
    standardiser: Standardiser,
    *,
    n_classes: int,
) -> pl.DataFrame:
    scoring = {key: fitted for key, fitted in fits.items() if fitted.status in SCORING}
    tables: dict[tuple[float, int], list[pl.DataFrame]] = {key: [] for key in scoring}
    for item in evaluated:
        check_finite(item.features, item.samples, where=str(item))
        _check_width(item, len(standardiser.mean))
        features = standardiser.transform(item.features)
        for key, fitted in scoring.items():
            tables[key].append(_prediction_table(key, item, fitted.logits(features)))
    ordered = [table for key in scoring for table in tables[key]]
    return pl.concat([predictions_schema(n_classes).to_frame(), *ordered])


def _check_width(item: EvaluatedSet, expected: int) -> None:
    if item.features.shape[1] != expected:
        raise DataError(
            f"{item}: {item.features.shape[1]} features a sample, but the train split has "
            f"{expected}; extract both with the same encoder"
        )


def _prediction_table(
    key: tuple[float, int], item: EvaluatedSet, logits: NDArray[np.float64]
) -> pl.DataFrame:
    schema = predictions_schema(logits.shape[1])
    fraction, seed = key
    columns = {
        "label_fraction": pl.lit(fraction),
        "seed": pl.lit(seed),
        "target": pl.lit(item.target),
        "side": pl.lit(item.side),
        "perturbation": pl.lit(item.perturbation),
        "severity": pl.lit(item.severity),
    }
    scored = pl.DataFrame({"sample": list(item.samples), "logits": logits.astype(np.float32)})
    return scored.with_columns(**columns).select(schema.names()).cast(schema)


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
        "features_digest": source["features_digest"],
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
