"""Stored predictions: the fits of a cell, and the logits of one evaluated set at a time."""

from collections.abc import Mapping, Sequence
from itertools import pairwise, starmap
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench.errors import DataError


class SetKey(NamedTuple):
    """One evaluated set under one distinct fit."""

    label_fraction: float
    seed: int
    target: str
    perturbation: str
    severity: int


class Fits:
    """The fits of one cell.

    Parameters
    ----------
    table
        `crsbench.probes.cell.FITS`.
    """

    def __init__(self, table: pl.DataFrame) -> None:
        keys = table.select("label_fraction", "seed").iter_rows()
        self._rows = dict(zip(keys, table.iter_rows(named=True), strict=True))

    def at(self, label_fraction: float, seed: int) -> Mapping[str, Any]:
        """Return the row of a label fraction and seed; a missing one is a `DataError`."""
        if (label_fraction, seed) not in self._rows:
            raise DataError(
                f"no fit for seed {seed} at label fraction {label_fraction:g}; "
                "run the probe stage again"
            )
        return self._rows[label_fraction, seed]


def logits_in_order(
    predictions: pl.DataFrame, samples: Sequence[str], *, key: SetKey
) -> NDArray[np.float32]:
    """Return the logits ``(N, C)`` of one evaluated set, in the order of its N samples.

    Raises
    ------
    DataError
        Unless the predictions have one row for each of the samples, and no other.
    """
    placed = pl.DataFrame({"sample": list(samples)}).join(
        predictions.select("sample", "logits"), on="sample", maintain_order="left"
    )
    n_right = placed["sample"].n_unique()
    if n_right != len(samples) or len(predictions) != len(samples):
        raise DataError(
            f"predictions of {key}: {len(predictions)} rows, {n_right} of them of the "
            f"{len(samples)} evaluated samples; predictions and split do not belong together"
        )
    return placed["logits"].to_numpy()


class CellPredictions:
    """The test logits of a cell by distinct fit and set; they are taken from the table when asked.

    The table of a large cell fills gigabytes. Its rows of a set follow each other, and no copy is
    made of it to find them.

    Parameters
    ----------
    table
        As `crsbench.probes.cell.predictions_schema` says.
    """

    def __init__(self, table: pl.DataFrame) -> None:
        self._table = table.select("sample", "logits")
        columns = ("side", *SetKey._fields)
        differs = [pl.col(name).ne_missing(pl.col(name).shift()) for name in columns]
        starts = table.select(pl.any_horizontal(differs).arg_true()).to_series()
        self._runs: dict[SetKey, list[slice]] = {}
        for (side, *values), run in zip(
            table.select(columns)[starts].iter_rows(),
            starmap(slice, pairwise([*starts, len(table)])),
            strict=True,
        ):
            if side == "test":
                self._runs.setdefault(SetKey(*values), []).append(run)

    def logits(self, key: SetKey, samples: Sequence[str]) -> NDArray[np.float32]:
        """Return the logits ``(N, C)`` of a set, in the order of its N samples.

        Raises
        ------
        DataError
            If there are none, or not one of each sample.
        """
        if key not in self._runs:
            raise DataError(f"no predictions of {key}; run the probe stage again")
        rows = pl.concat([self._table[run] for run in self._runs[key]])
        return logits_in_order(rows, samples, key=key)
