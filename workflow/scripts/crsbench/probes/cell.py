"""One cell, one probe: all its fits, and the logits of every evaluated set under each of them.

Features are standardised with the statistics of the whole train split, whatever the fraction. Fits
on the same rows are made once: at 100 % labels that is one fit for all seeds, unless the seed
matters to the probe. A fit that failed has a row among the fits and no logits; the others go on.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench.digests import digest, frame_digest
from crsbench.errors import DataError
from crsbench.features.table import Standardiser, check_finite, read_features
from crsbench.files import read_metadata
from crsbench.probes.base import SCORING, Features, Fit, Subset
from crsbench.records import CLEAN

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
        "logits_digest": pl.String(),
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
        ``(N, D)`` float32, not standardised.
    labels
        ``(N,)`` class indices, or ``(N, L)`` of 1, 0, and NaN for masked.
    """

    samples: Sequence[str]
    features: Features
    labels: NDArray[Any]


@dataclass(frozen=True)
class EvaluatedSet:
    """Samples of one side of one dataset under one condition, ``features`` ``(n, D)``."""

    target: str
    side: str
    perturbation: str
    severity: int
    samples: Sequence[str]
    features: Features

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


@dataclass(frozen=True)
class CellFits:
    """All fits of one probe on one cell.

    Attributes
    ----------
    scoring
        The distinct fits that can score, by label fraction and by the first seed that has them.
    standardiser
        Brings features to the scale that they were fitted on.
    table
        `FITS` but for the digests of logits, one row per fraction and seed.
    """

    scoring: Mapping[tuple[float, int], Fit]
    standardiser: Standardiser
    table: pl.DataFrame


def fit_cell(
    train: TrainingSide,
    *,
    fit: Callable[[Features, NDArray[Any], Sequence[Subset]], Sequence[Fit]],
    seed_matters: bool,
    subsamples: pl.DataFrame,
    label_fractions: Sequence[float],
    seeds: Sequence[int],
) -> CellFits:
    """Fit a probe on every label subsample of a cell.

    Parameters
    ----------
    train
        The train split. Its features are standardised in place: there is no memory for a second
        matrix of the largest size.
    fit
        `Probe.fit`, given all but the features, the labels and the training sets.
    seed_matters
        Whether two seeds with the same rows are two fits.
    subsamples
        Columns seed, sample, label_fraction: the smallest fraction whose subsample holds it.

    Raises
    ------
    DataError
        If a subsample is empty or has samples outside the train split, or if features are not
        finite.
    """
    check_finite(train.features, train.samples, where="train split")
    standardiser = Standardiser.fit(train.features)
    standardiser.apply(train.features)
    keys, subsets = _distinct_subsets(
        train.samples, subsamples, label_fractions, seeds, seed_matters=seed_matters
    )
    fits = fit(train.features, train.labels, subsets)
    scoring: dict[tuple[float, int], Fit] = {}
    first_seeds: dict[tuple[float, int], int] = {}
    rows_of_fits = []
    for (fraction, seed), number in keys.items():
        first_seed = first_seeds.setdefault((fraction, number), seed)
        rows_of_fits.append((fraction, seed, first_seed, *_diagnostics(fits[number]), None))
        if fits[number].status in SCORING:
            scoring[fraction, first_seed] = fits[number]
    return CellFits(scoring, standardiser, pl.DataFrame(rows_of_fits, schema=FITS, orient="row"))


def _distinct_subsets(
    samples: Sequence[str],
    subsamples: pl.DataFrame,
    label_fractions: Sequence[float],
    seeds: Sequence[int],
    *,
    seed_matters: bool,
) -> tuple[dict[tuple[float, int], int], list[Subset]]:
    """Return the number of each fraction and seed's training set, and the sets by number."""
    numbers: dict[tuple[bytes, int | None], int] = {}
    subsets: list[Subset] = []
    keys = {}
    for fraction in label_fractions:
        for seed, rows in _subsample_rows(subsamples, samples, fraction, seeds).items():
            identity = rows.tobytes(), seed if seed_matters else None
            if identity not in numbers:
                numbers[identity] = len(subsets)
                subsets.append(Subset(fraction, seed, rows))
            keys[fraction, seed] = numbers[identity]
    return keys, subsets


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


def score_cell(
    fits: CellFits,
    evaluated: Iterable[EvaluatedSet],
    *,
    score: Callable[[Sequence[Fit], Features], NDArray[np.floating]],
    n_classes: int,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Score all evaluated sets under all fits of a cell.

    Parameters
    ----------
    fits
        As `fit_cell` returns them.
    evaluated
        What to score, read one at a time. Their features are standardised in place.
    score
        `Probe.score`, given the number of threads.

    Returns
    -------
    predictions
        `predictions_schema`, in the order of fractions, seeds, evaluated sets, samples. ``seed``
        is the first of the seeds that share the fit.
    fits
        `FITS`, one row per fraction and seed, with the digest of all logits of the fit.

    Raises
    ------
    DataError
        If features are not finite or not of the train split's width.
    """
    tables: dict[tuple[float, int], list[pl.DataFrame]] = {key: [] for key in fits.scoring}
    digests: dict[tuple[float, int], list[str]] = {key: [] for key in fits.scoring}
    for item in evaluated:
        check_finite(item.features, item.samples, where=str(item))
        _check_width(item, len(fits.standardiser.mean))
        fits.standardiser.apply(item.features)
        keys = _key_columns(item)
        identity = frame_digest(keys)
        logits = score(list(fits.scoring.values()), item.features) if fits.scoring else ()
        for key, of_fit in zip(fits.scoring, logits, strict=True):
            stored = np.asarray(of_fit, dtype=np.float32, order="C")
            tables[key].append(_prediction_table(key, keys, stored))
            digests[key].append(digest(identity, stored.tobytes()))
    ordered = [table for key in fits.scoring for table in tables[key]]
    predictions = pl.concat([predictions_schema(n_classes).to_frame(), *ordered])
    return predictions, _with_digests(fits.table, digests)


def _with_digests(
    fits: pl.DataFrame, digests: Mapping[tuple[float, int], Sequence[str]]
) -> pl.DataFrame:
    of_fit = {key: digest(*of_sets) for key, of_sets in digests.items()}
    keys = fits.select("label_fraction", "fit_seed").iter_rows()
    column = pl.Series("logits_digest", [of_fit.get(key) for key in keys], dtype=pl.String())
    return fits.with_columns(column)


def _key_columns(item: EvaluatedSet) -> pl.DataFrame:
    """Return the columns of a predictions table that all fits share."""
    same = {
        "target": pl.lit(item.target),
        "side": pl.lit(item.side),
        "perturbation": pl.lit(item.perturbation),
        "severity": pl.lit(item.severity, dtype=pl.Int64()),
    }
    samples = pl.DataFrame({"sample": list(item.samples)})
    return samples.select(**same, sample=pl.col("sample"))


def _check_width(item: EvaluatedSet, expected: int) -> None:
    if item.features.shape[1] != expected:
        raise DataError(
            f"{item}: {item.features.shape[1]} features a sample, but the train split has "
            f"{expected}; extract both with the same encoder"
        )


def _prediction_table(
    key: tuple[float, int], keys: pl.DataFrame, logits: NDArray[np.float32]
) -> pl.DataFrame:
    schema = predictions_schema(logits.shape[1])
    fraction, seed = key
    of_fit = [
        pl.lit(fraction).alias("label_fraction"),
        pl.lit(seed, dtype=pl.Int64()).alias("seed"),
        pl.Series("logits", logits, dtype=schema["logits"]),
    ]
    return keys.with_columns(of_fit).select(schema.names())


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
            "feature_values_digest": about["content_digest"],
            "feature_dtype": about["dtype"],
            "feature_flags": about["flags"],
            "input_min": float(about["input_min"]),
            "input_max": float(about["input_max"]),
        }
        for target, about in evaluated.items()
    }
