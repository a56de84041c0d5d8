"""Run records and metric rows: their keys, their schema, and the check that all are there.

A run record is one evaluation: a probe, fitted on a label fraction of a dataset's training side
with one seed, evaluated under one condition. A metric row is the mean over the seeds. The keys of
a run follow from its settings alone; results with other keys are an error.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from crsbench.errors import DataError, listed
from crsbench.files import read_parquet, write_parquet

CLEAN = "clean"

#: Metrics of a run record, of one evaluated set; those of classes are macro-averaged. Higher is
#: better but for ece*, adaptive_ece, brier, nll, ordinal_mae; mean_confidence has no direction.
METRICS = (
    "macro_auroc",
    "macro_auprc",
    "sensitivity_at_specificity",
    "ece",
    "ece_max_confidence",
    "adaptive_ece",
    "brier",
    "nll",
    "accuracy",
    "mean_confidence",
    "qwk",
    "ordinal_mae",
)

#: What tells one metric row from all others, with its types.
ROW_KEY = {
    "probe": pl.String(),
    "encoder": pl.String(),
    "dataset": pl.String(),
    "target": pl.String(),
    "label_fraction": pl.Float64(),
    "perturbation": pl.String(),
    "severity": pl.Int64(),
}
_PER_CLASS = {"class_auroc": pl.List(pl.Float64())}
_METRIC_COLUMNS = dict.fromkeys(METRICS, pl.Float64())

#: What a result depends on; equal over all records of a cell and target.
_IDENTITY = {
    "settings": pl.String(),
    "index_digest": pl.String(),
    "split_digest": pl.String(),
    "subsamples_digest": pl.String(),
    "target_digest": pl.String(),
    "perturbation_digest": pl.String(),
    "weights_digest": pl.String(),
    "transform_digest": pl.String(),
    "features_digest": pl.String(),
    "feature_values_digest": pl.String(),
    "predictions_digest": pl.String(),
    "code_digest": pl.String(),
    "feature_dtype": pl.String(),
    "feature_flags": pl.String(),
    "input_min": pl.Float64(),
    "input_max": pl.Float64(),
}

RUN_RECORD = pl.Schema(
    ROW_KEY
    | {
        "seed": pl.Int64(),
        "n_train": pl.Int64(),
        "n_evaluated": pl.Int64(),
        "fit_seed": pl.Int64(),
        "fit_status": pl.String(),
        "fit_reason": pl.String(),
        "iterations": pl.Int64(),
        "gradient_norm": pl.Float64(),
    }
    | _METRIC_COLUMNS
    | _PER_CLASS
    | {
        "class_n_positive": pl.List(pl.Int64()),
        "class_n_negative": pl.List(pl.Int64()),
        "dropped_classes": pl.List(pl.String()),
        "undefined": pl.List(pl.String()),
    }
    | _IDENTITY
)
METRIC_ROW = pl.Schema(
    ROW_KEY
    | {"n_seeds": pl.Int64(), "n_train": pl.Float64()}
    | _METRIC_COLUMNS
    | _PER_CLASS
    | {"undefined": pl.List(pl.String())}
)


class Cell(NamedTuple):
    """One encoder on one dataset."""

    encoder: str
    dataset: str


class RunKey(NamedTuple):
    """What tells one run record from all others."""

    probe: str
    encoder: str
    dataset: str
    target: str
    label_fraction: float
    perturbation: str
    severity: int
    seed: int


def conditions(perturbations: Iterable[str], severities: Iterable[int]) -> list[tuple[str, int]]:
    """Return the conditions of a test set: clean, then every perturbation and severity."""
    severities = tuple(severities)
    return [(CLEAN, 0), *((name, severity) for name in perturbations for severity in severities)]


def enumerate_run_keys(
    cells: Iterable[Cell],
    *,
    probes: Sequence[str],
    label_fractions: Sequence[float],
    seeds: Sequence[int],
    conditions: Sequence[tuple[str, int]],
    shift: Mapping[str, Sequence[str]],
) -> Iterator[RunKey]:
    """Enumerate the run records of a configuration, in their canonical order.

    Parameters
    ----------
    cells
        The encoders and datasets of the run.
    conditions
        ``(perturbation, severity)`` of the own test side, as `conditions` returns them.
    shift
        Shift targets of each dataset; a target is evaluated clean only.

    Notes
    -----
    Protocol, section 1: 43 cells x 5 fractions x 16 conditions x 5 seeds, and 15 x 5 x 5 on
    MIMIC-CXR, are the paper's 17,575 records.
    """
    cells = tuple(cells)
    for probe in probes:
        for cell in cells:
            evaluated = [(cell.dataset, *condition) for condition in conditions]
            evaluated += [(target, CLEAN, 0) for target in shift.get(cell.dataset, ())]
            for fraction in label_fractions:
                for target, perturbation, severity in evaluated:
                    for seed in seeds:
                        yield RunKey(probe, *cell, target, fraction, perturbation, severity, seed)


def check_complete(records: pl.DataFrame, expected: Iterable[RunKey]) -> None:
    """Raise unless the records have exactly the expected keys, each once."""
    found = [RunKey(*row) for row in records.select(RunKey._fields).iter_rows()]
    expected = list(expected)
    missing = sorted(set(expected) - set(found))
    surplus = sorted(set(found) - set(expected))
    n_repeated = len(found) - len(set(found))
    if missing or surplus or n_repeated:
        raise DataError(
            f"run records: {len(expected)} expected, {len(found)} found; "
            f"{_named('missing', missing)}; {_named('surplus', surplus)}; "
            f"{n_repeated} repeated; the configuration and the results do not belong together"
        )


def _named(what: str, keys: Sequence[RunKey]) -> str:
    names = ["/".join(str(part) for part in key) for key in keys]
    return f"{len(keys)} {what}" + (f" ({listed(names, 3)})" if keys else "")


def check_schema(frame: pl.DataFrame, schema: pl.Schema, where: str) -> None:
    """Raise unless a table has exactly the columns and types of a schema, in its order."""
    for name, dtype in schema.items():
        if name not in frame.columns:
            raise DataError(f"{where}: column {name} is missing; the file is of another version")
        if frame.schema[name] != dtype:
            raise DataError(f"{where}: column {name} has type {frame.schema[name]}, not {dtype}")
    surplus = sorted(set(frame.columns) - set(schema))
    if surplus:
        raise DataError(f"{where}: unknown columns {', '.join(surplus)}")


def write_records(frame: pl.DataFrame, path: str | Path, schema: pl.Schema) -> None:
    """Check a table against its schema and write it atomically."""
    check_schema(frame, schema, str(path))
    write_parquet(frame.select(schema.names()), path)


def read_records(path: str | Path, schema: pl.Schema) -> pl.DataFrame:
    """Read a table and check it against its schema."""
    frame = read_parquet(path)
    check_schema(frame, schema, str(path))
    return frame
