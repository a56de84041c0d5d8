"""The four axes of a cell, and their supplements, from metric rows.

Law: higher is better on every axis. Metric rows are means over seeds; ratios, drops and maxima
are formed from these means and never averaged themselves. Undefined is NaN in arrays and null,
with a reason, in tables; nothing is imputed. Sums run over the last dimension in its order, so
that a replicate in a batch gets the same bits as the same numbers alone.

    discrimination    A, the clean macro-AUROC with all labels
    calibration       1 - ECE, clean, all labels
    label efficiency  mean over the fractions below 1 of A(fraction) / A(1), not clipped
    robustness        max(0, 1 - mean of (mean drop, worst drop, shift drop if there is one))
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench.arrays import Floats
from crsbench.errors import DataError
from crsbench.records import CLEAN

#: One row per cell; an empty axis is undefined and `reason` says why.
AXES_TABLE = pl.Schema(
    {
        "encoder": pl.String(),
        "dataset": pl.String(),
        "discrimination": pl.Float64(),
        "calibration": pl.Float64(),
        "label_efficiency": pl.Float64(),
        "robustness": pl.Float64(),
        "reason": pl.String(),
        "label_efficiency_log": pl.Float64(),
        "aulc": pl.Float64(),
        "aulc_log": pl.Float64(),
        "robustness_corruption_only": pl.Float64(),
        "mean_drop": pl.Float64(),
        "worst_drop": pl.Float64(),
        "shift_drop": pl.Float64(),
    }
)

_CONDITION = ("target", "label_fraction", "perturbation", "severity")
_ALL_LABELS = 1.0


def label_efficiency(low: Floats, full: Floats) -> Floats:
    """Return the mean retention of full-label AUROC, shape (...); not clipped at one.

    Parameters
    ----------
    low
        AUROC at each label fraction below one, shape (..., F).
    full
        AUROC with all labels, shape (...).
    """
    return _mean_over_last(low / _positive(full)[..., None])


def aulc(auroc: Floats, fractions: Sequence[float], *, log: bool = False) -> Floats:
    """Return the area under the learning curve divided by the range of fractions, shape (...).

    Parameters
    ----------
    auroc
        AUROC at each label fraction, shape (..., F); NaN where fewer than two are given.
    fractions
        The F label fractions, ascending.
    log
        Whether the trapezoids stand on the logarithm of the fraction.
    """
    places = np.log(fractions) if log else np.asarray(fractions, np.float64)
    area = np.zeros(auroc.shape[:-1])
    if len(places) < 2:
        return np.full_like(area, np.nan)
    for step, width in enumerate(np.diff(places)):
        area += width * (auroc[..., step] + auroc[..., step + 1]) / 2
    return area / (places[-1] - places[0])


def relative_drops(clean: Floats, other: Floats) -> Floats:
    """Return the relative losses of AUROC, floored at zero, shape (..., J).

    Parameters
    ----------
    clean
        Clean AUROC, shape (...).
    other
        AUROC under J conditions, shape (..., J).
    """
    before = _positive(clean)[..., None]
    return np.maximum(0.0, (before - other) / before)


def shift_drop(source: Floats, target: Floats) -> Floats:
    """Return the relative loss of macro-AUROC under an institutional shift, shape (...).

    Parameters
    ----------
    source, target
        AUROC of each class on the own test side and on the shift target, shape (..., C). Both
        means are over the classes that are defined in both; NaN where there is none.
    """
    common = ~np.isnan(source) & ~np.isnan(target)
    before, after = _mean_where(common, source), _mean_where(common, target)
    return relative_drops(before, after[..., None])[..., 0]


def robustness(drops: Floats, *, shift: Floats | None = None) -> Floats:
    """Return the robustness axis, shape (...).

    Parameters
    ----------
    drops
        Relative drops under the perturbed conditions, shape (..., J); NaN where J is zero.
    shift
        Relative drop under the shift, shape (...), where the cell has a shift target.
    """
    terms = [_mean_over_last(drops), worst_drop(drops), *([] if shift is None else [shift])]
    return np.maximum(0.0, 1 - sum(terms[1:], start=terms[0]) / len(terms))


def worst_drop(drops: Floats) -> Floats:
    """Return the largest drop, shape (...); NaN where there is none."""
    return drops.max(axis=-1) if drops.shape[-1] else np.full(drops.shape[:-1], np.nan)


def _positive(values: Floats) -> Floats:
    return np.where(values > 0, values, np.nan)


def _mean_over_last(values: Floats) -> Floats:
    return _mean_where(np.ones(values.shape, bool), values)


def _mean_where(included: NDArray[np.bool_], values: Floats) -> Floats:
    total = np.zeros(values.shape[:-1])
    for place in range(values.shape[-1]):
        total += np.where(included[..., place], values[..., place], 0.0)
    count = included.sum(axis=-1)
    return total / np.where(count > 0, count, np.nan)


def read_axes_table(path: str | Path) -> pl.DataFrame:
    """Read a table that `axes_table` computed and that was written as CSV."""
    return pl.read_csv(path, schema=AXES_TABLE)


def axes_table(
    metric_rows: pl.DataFrame,
    *,
    probe: str,
    robustness_fractions: Sequence[float],
) -> pl.DataFrame:
    """Compute the axes of every cell from its metric rows.

    Parameters
    ----------
    metric_rows
        Metric rows (`records.METRIC_ROW`), already averaged over seeds.
    probe
        The probe whose rows are used.
    robustness_fractions
        Label fractions whose perturbed and shifted conditions enter robustness. A drop compares
        with the clean row of the same fraction.

    Returns
    -------
    pl.DataFrame
        `AXES_TABLE`, one row per cell in the order of the metric rows. With several shift
        targets the shift drop is the mean of theirs: there is one shift term at most.

    Raises
    ------
    DataError
        For no rows of the probe, a repeated row, or an encoder that lacks a condition which
        another encoder has on the same dataset.
    """
    rows = metric_rows.filter(pl.col("probe") == probe)
    if rows.is_empty():
        probes = ", ".join(sorted(metric_rows["probe"].unique())) or "none"
        raise DataError(f"metric rows: none of probe {probe}; probes there: {probes}")
    _check_conditions(rows)
    cells = [
        _cell_axes(_Rows(cell), tuple(robustness_fractions))
        for cell in rows.partition_by("encoder", "dataset", maintain_order=True)
    ]
    return pl.DataFrame(cells, schema=AXES_TABLE)


def _check_conditions(rows: pl.DataFrame) -> None:
    """Raise unless all encoders of a dataset have the same conditions, each once."""
    for (dataset,), of_dataset in rows.group_by("dataset", maintain_order=True):
        conditions = set(of_dataset.select(_CONDITION).iter_rows())
        for (encoder,), cell in of_dataset.group_by("encoder", maintain_order=True):
            where = f"metric rows of {encoder} on {dataset}"
            if cell.select(_CONDITION).is_duplicated().any():
                raise DataError(f"{where}: a condition stands twice")
            missing = sorted(conditions - set(cell.select(_CONDITION).iter_rows()))
            if missing:
                first = "/".join(str(part) for part in missing[0])
                raise DataError(
                    f"{where}: {len(missing)} conditions are missing that other encoders have "
                    f"(first: {first}); evaluate this cell again"
                )


class _Rows:
    """The metric rows of one cell, found by their condition."""

    def __init__(self, rows: pl.DataFrame) -> None:
        self.encoder: str = rows["encoder"][0]
        self.dataset: str = rows["dataset"][0]
        self._by_condition: dict[tuple[object, ...], Mapping[str, object]] = {
            tuple(row[name] for name in _CONDITION): row for row in rows.iter_rows(named=True)
        }
        self.fractions: list[float] = sorted(rows["label_fraction"].unique())
        self.perturbed: list[tuple[str, int]] = [
            condition
            for condition in dict.fromkeys(rows.select("perturbation", "severity").iter_rows())
            if condition[0] != CLEAN
        ]
        self.shift_targets: list[str] = [
            target
            for target in rows["target"].unique(maintain_order=True)
            if target != self.dataset
        ]

    def clean(self, fraction: float, target: str | None = None) -> Mapping[str, object]:
        """Return the clean row at a label fraction, on the own test side or a shift target."""
        return self._row(target or self.dataset, fraction, CLEAN, 0)

    def _row(self, *condition: object) -> Mapping[str, object]:
        if condition not in self._by_condition:
            wanted = "/".join(str(part) for part in condition)
            raise DataError(f"metric rows of {self.encoder} on {self.dataset}: no row of {wanted}")
        return self._by_condition[condition]

    def auroc(self, fraction: float) -> float:
        """Return the clean macro-AUROC at a label fraction."""
        return _number(self.clean(fraction), "macro_auroc")

    def drops(self, fraction: float) -> Floats:
        """Return the drops under the perturbed conditions at a label fraction, shape (J,)."""
        rows = [self._row(self.dataset, fraction, *condition) for condition in self.perturbed]
        perturbed = np.array([_number(row, "macro_auroc") for row in rows])
        return relative_drops(np.array(self.auroc(fraction)), perturbed)

    def shift_drop(self, fraction: float) -> float:
        """Return the mean drop over the shift targets at a label fraction."""
        source = _per_class(self.clean(fraction))
        targets = [_per_class(self.clean(fraction, target)) for target in self.shift_targets]
        if any(len(target) != len(source) for target in targets):
            raise DataError(
                f"metric rows of {self.encoder} on {self.dataset}: class_auroc of a shift target "
                f"has another length than the {len(source)} classes of {self.dataset}"
            )
        return float(np.mean([shift_drop(source, target) for target in targets]))


def _number(row: Mapping[str, object], column: str) -> float:
    value = row[column]
    return float(value) if isinstance(value, int | float) else np.nan


def _per_class(row: Mapping[str, object]) -> Floats:
    values = row["class_auroc"]
    if not isinstance(values, Iterable):
        return np.array([])
    return np.array([np.nan if value is None else float(value) for value in values])


def _cell_axes(
    rows: _Rows, robustness_fractions: tuple[float, ...]
) -> dict[str, float | str | None]:
    auroc = np.array([rows.auroc(fraction) for fraction in rows.fractions])
    full = np.array(rows.auroc(_ALL_LABELS))
    low = auroc[np.array(rows.fractions) < _ALL_LABELS]
    drops = np.concatenate([rows.drops(fraction) for fraction in robustness_fractions])
    has_shift = bool(rows.shift_targets)
    shift = np.array(
        np.mean([rows.shift_drop(fraction) for fraction in robustness_fractions])
        if has_shift
        else np.nan
    )
    axes = {
        "discrimination": full,
        "calibration": np.array(1 - _number(rows.clean(_ALL_LABELS), "ece")),
        "label_efficiency": label_efficiency(low, full),
        "robustness": robustness(drops, shift=shift if has_shift else None),
    }
    supplements = {
        "label_efficiency_log": aulc(auroc / _positive(full), rows.fractions, log=True),
        "aulc": aulc(auroc, rows.fractions),
        "aulc_log": aulc(auroc, rows.fractions, log=True),
        "robustness_corruption_only": robustness(drops),
        "mean_drop": _mean_over_last(drops),
        "worst_drop": worst_drop(drops),
        "shift_drop": shift,
    }
    reason = _reason(rows, robustness_fractions, axes)
    values = {name: _or_null(value) for name, value in (axes | supplements).items()}
    return {"encoder": rows.encoder, "dataset": rows.dataset, "reason": reason} | values


def _or_null(value: Floats) -> float | None:
    return None if np.isnan(value) else float(value)


def _reason(
    rows: _Rows,
    robustness_fractions: tuple[float, ...],
    axes: Mapping[str, Floats],
) -> str | None:
    """Say for each undefined axis what is missing; None when all four are defined."""
    causes = {
        "discrimination": _undefined_rows(rows, "macro_auroc", [_ALL_LABELS]),
        "calibration": _undefined_rows(rows, "ece", [_ALL_LABELS]),
        "label_efficiency": _undefined_rows(rows, "macro_auroc", rows.fractions)
        if len(rows.fractions) > 1
        else "no label fraction below 1 in this run",
        "robustness": _no_robustness(rows, robustness_fractions),
    }
    undefined = [f"{name}: {causes[name]}" for name, value in axes.items() if np.isnan(value)]
    return "; ".join(undefined) or None


def _undefined_rows(rows: _Rows, metric: str, fractions: Sequence[float]) -> str:
    for fraction in fractions:
        row = rows.clean(fraction)
        if np.isnan(_number(row, metric)):
            said = row["undefined"]
            details = ", ".join(str(item) for item in said) if isinstance(said, list) else ""
            return f"{metric} undefined, clean, label fraction {fraction:g}" + (
                f" ({details})" if details else ""
            )
    return f"{metric} is 0 with all labels"


def _no_robustness(rows: _Rows, fractions: Sequence[float]) -> str:
    if not rows.perturbed:
        return "no perturbation in this run"
    if any(np.isnan(rows.drops(fraction)).any() for fraction in fractions):
        return "macro_auroc undefined, clean or under a perturbation"
    return f"no class with a defined AUROC both on {rows.dataset} and on the shift target"
