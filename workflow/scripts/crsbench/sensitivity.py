"""Sensitivity of the ranking to its estimators, its datasets and its incomplete members.

Law: a variant changes the raw axes of the cells and nothing else; aggregation, anchors, dominance
and CRS are then recomputed, and compared on the encoders that both rankings have. Tables are tidy
whatever the panel's size; what is undefined is null, and `reason` says why.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from crsbench.arrays import Bools, Floats
from crsbench.cell_arrays import (
    cell_array,
    clean_full_label_rows,
    cohort_crs,
    observed_cells,
    own_side,
)
from crsbench.crs import AXES, Weights
from crsbench.decisions import undefined_agreement
from crsbench.rankings import descending_order, kendall_tau_b, mid_ranks, spearman, top_k_overlap
from crsbench.reference import AGGREGATE

DISCRIMINATION, CALIBRATION, ROBUSTNESS = (
    AXES.index(name) for name in ("discrimination", "calibration", "robustness")
)

VARIANTS = pl.Schema(
    {
        "variant": pl.String(),
        "scope": pl.String(),
        "n_encoders": pl.Int64(),
        "tau_b": pl.Float64(),
        "rho": pl.Float64(),
        "top3_overlap": pl.Float64(),
        "top5_overlap": pl.Float64(),
        "mean_change": pl.Float64(),
        "max_change": pl.Float64(),
        "reason": pl.String(),
    }
)
VARIANT_SCORES = pl.Schema(
    {
        "variant": pl.String(),
        "scope": pl.String(),
        "encoder": pl.String(),
        "crs": pl.Float64(),
        "crs_variant": pl.Float64(),
        "change": pl.Float64(),
        "rank": pl.Float64(),
        "rank_variant": pl.Float64(),
    }
)
HELD_OUT = pl.Schema(
    {
        "held_out": pl.String(),
        "n_encoders": pl.Int64(),
        "rho": pl.Float64(),
        "top3_overlap": pl.Float64(),
        "crs_winner": pl.String(),
        "held_out_winner": pl.String(),
        "winner_recovered": pl.Boolean(),
        "reason": pl.String(),
    }
)
SHIFT_PREDICTION = pl.Schema(
    {
        "dataset": pl.String(),
        "target": pl.String(),
        "predictor": pl.String(),
        "rho": pl.Float64(),
        "n_encoders": pl.Int64(),
        "reason": pl.String(),
    }
)


@dataclass(frozen=True)
class Variant:
    """One CRS of a panel beside another, each of shape (K,); NaN where an encoder has none.

    Attributes
    ----------
    name, scope
        What was changed, and in which CRS: ``aggregate`` or a dataset.
    reason
        Why there is no variant, or None.
    """

    name: str
    scope: str
    encoders: tuple[str, ...]
    crs: Floats
    changed: Floats
    reason: str | None = None

    @property
    def compared(self) -> Bools:
        """Which encoders both have, shape (K,)."""
        return np.isfinite(self.crs) & np.isfinite(self.changed)


def variants_table(variants: Sequence[Variant]) -> pl.DataFrame:
    """Return tau-b, rho, Top-3, Top-5 and |change of CRS| of each variant (`VARIANTS`)."""
    rows = [_agreement(variant) for variant in variants]
    return pl.DataFrame(rows, schema=VARIANTS).fill_nan(None)


def _agreement(variant: Variant) -> dict[str, object]:
    before, after = variant.crs[variant.compared], variant.changed[variant.compared]
    head = {"variant": variant.name, "scope": variant.scope, "n_encoders": len(before)}
    if not len(before):
        return head | {"reason": variant.reason or "no CRS: fewer than two encoders, or all alike"}
    change = np.abs(after - before)
    return head | {
        "tau_b": float(kendall_tau_b(before, after)),
        "rho": float(spearman(before, after)),
        "top3_overlap": float(top_k_overlap(before, after, k=3)),
        "top5_overlap": float(top_k_overlap(before, after, k=5)),
        "mean_change": float(change.mean()),
        "max_change": float(change.max()),
        "reason": undefined_agreement(before, after),
    }


def variant_scores(variants: Sequence[Variant]) -> pl.DataFrame:
    """Return both CRS and ranks of each encoder that both have (`VARIANT_SCORES`)."""
    return pl.concat([_scores(variant) for variant in variants] or [VARIANT_SCORES.to_frame()])


def _scores(variant: Variant) -> pl.DataFrame:
    kept = np.flatnonzero(variant.compared)
    before, after = variant.crs[kept], variant.changed[kept]
    columns = {
        "variant": [variant.name] * len(kept),
        "scope": [variant.scope] * len(kept),
        "encoder": [variant.encoders[place] for place in kept],
        "crs": before,
        "crs_variant": after,
        "change": after - before,
        "rank": mid_ranks(before),
        "rank_variant": mid_ranks(after),
    }
    return pl.DataFrame(columns, schema=VARIANT_SCORES)


def _names(cells: pl.DataFrame, column: str) -> tuple[str, ...]:
    return tuple(cells[column].unique(maintain_order=True))


def estimator_substitutions(
    cells: pl.DataFrame,
    metric_rows: pl.DataFrame,
    *,
    probe: str,
    ordinal_datasets: Sequence[str],
    weights: Weights,
) -> list[Variant]:
    """Replace one estimator at a time (paper, section 5.7; protocol, section 9).

    Parameters
    ----------
    cells
        The axes of every cell (`axes.AXES_TABLE`).
    metric_rows
        Metric rows, of which those of `probe` are used.
    ordinal_datasets
        Datasets in whose own CRS QWK and ordinal MAE replace discrimination.

    Returns
    -------
    Variants ``adaptive_ece``, ``brier`` and ``corruption_only`` of the aggregate CRS, then
    ``qwk`` and ``ordinal_mae`` of each ordinal dataset.
    """
    encoders, datasets = _names(cells, "encoder"), _names(cells, "dataset")
    columns = ("adaptive_ece", "brier", "qwk", "ordinal_mae")
    full_label = own_side(clean_full_label_rows(metric_rows, probe=probe))
    metrics = cell_array(full_label, columns, encoders=encoders, datasets=datasets)
    adaptive, brier, qwk, mae = np.moveaxis(metrics, -1, 0)
    axes = cell_array(cells, AXES, encoders=encoders, datasets=datasets)
    corruption = cell_array(
        cells, ("robustness_corruption_only",), encoders=encoders, datasets=datasets
    )[..., 0]
    substitution = _Substitution(encoders, datasets, axes, weights)
    return [
        substitution.aggregate("adaptive_ece", CALIBRATION, 1 - adaptive),
        substitution.aggregate("brier", CALIBRATION, 1 - brier),
        substitution.aggregate("corruption_only", ROBUSTNESS, corruption),
        *(
            substitution.domain(name, dataset, DISCRIMINATION, values)
            for dataset in ordinal_datasets
            for name, values in (("qwk", qwk), ("ordinal_mae", -mae))
        ),
    ]


@dataclass(frozen=True)
class _Substitution:
    """Raw axes (K, D, 4) of which one is replaced by other values (K, D)."""

    encoders: tuple[str, ...]
    datasets: tuple[str, ...]
    axes: Floats
    weights: Weights

    def aggregate(self, name: str, axis: int, values: Floats) -> Variant:
        return self._variant(name, AGGREGATE, axis, values, list(range(len(self.datasets))))

    def domain(self, name: str, dataset: str, axis: int, values: Floats) -> Variant:
        return self._variant(name, dataset, axis, values, [self.datasets.index(dataset)])

    def _variant(
        self, name: str, scope: str, axis: int, values: Floats, places: list[int]
    ) -> Variant:
        axes, changed = self.axes[:, places], self.axes[:, places].copy()
        changed[..., axis] = values[:, places]
        crs = cohort_crs(axes, weights=self.weights)
        lost = np.argwhere(observed_cells(axes) & ~observed_cells(changed))
        if len(lost):
            k, d = lost[0]
            cell = f"{self.encoders[k]} on {self.datasets[places[d]]}"
            reason = f"{name} is undefined in {len(lost)} cells (first: {cell})"
            return Variant(name, scope, self.encoders, crs, np.full_like(crs, np.nan), reason)
        return Variant(name, scope, self.encoders, crs, cohort_crs(changed, weights=self.weights))


def complete_members(cells: pl.DataFrame, *, weights: Weights) -> list[Variant]:
    """Recompute CRS without incomplete evidence (protocol, section 9).

    Returns
    -------
    Variants ``complete_members`` (only encoders with every dataset stand in the panel) and
    ``common_datasets`` (all encoders, only datasets that every encoder has), both beside the
    aggregate CRS. They equal it where no cell is missing.
    """
    encoders, datasets = _names(cells, "encoder"), _names(cells, "dataset")
    axes = cell_array(cells, AXES, encoders=encoders, datasets=datasets)
    observed = observed_cells(axes)
    complete = np.logical_and.reduce(observed, axis=1)
    only_complete = np.where(complete[:, None, None], axes, np.nan)
    only_common = axes[:, np.logical_and.reduce(observed, axis=0)]
    crs = cohort_crs(axes, weights=weights)
    changed = {
        "complete_members": (only_complete, "no encoder has every dataset"),
        "common_datasets": (only_common, "no dataset has every encoder"),
    }
    return [
        _beside(name, encoders, crs, cohort_crs(variant, weights=weights), reason)
        for name, (variant, reason) in changed.items()
    ]


def _beside(
    name: str, encoders: tuple[str, ...], crs: Floats, changed: Floats, reason: str
) -> Variant:
    missing = None if np.isfinite(changed).any() else reason
    return Variant(name, AGGREGATE, encoders, crs, changed, missing)


def leave_one_dataset_out(
    cells: pl.DataFrame, *, weights: Weights, target: str = AXES[DISCRIMINATION]
) -> pl.DataFrame:
    """Predict an axis of each dataset from the CRS on the others (paper, section 5.6).

    Parameters
    ----------
    cells
        Rows of the axes table.
    target
        The axis: by default discrimination, which is the clean macro-AUROC.

    Returns
    -------
    `HELD_OUT`, one row per dataset, on the encoders that have a CRS and the held-out value. Ties
    for the winner are broken by the panel's order.
    """
    encoders, datasets = _names(cells, "encoder"), _names(cells, "dataset")
    axes = cell_array(cells, AXES, encoders=encoders, datasets=datasets)
    rows = []
    for d, dataset in enumerate(datasets):
        crs = cohort_crs(np.delete(axes, d, axis=1), weights=weights)
        row = _held_out_row(crs, axes[:, d, AXES.index(target)], encoders)
        rows.append({"held_out": dataset} | row)
    return pl.DataFrame(rows, schema=HELD_OUT).fill_nan(None)


def _held_out_row(crs: Floats, held_out: Floats, encoders: Sequence[str]) -> dict[str, object]:
    both = np.flatnonzero(np.isfinite(crs) & np.isfinite(held_out))
    if len(both) < 2:
        reason = f"{len(both)} encoders have a CRS on other datasets and a value on this one"
        return {"n_encoders": len(both), "reason": reason}
    winner, actual = (int(both[descending_order(values[both])[0]]) for values in (crs, held_out))
    rho = float(spearman(crs[both], held_out[both]))
    overlap = float(top_k_overlap(crs[both], held_out[both], k=3))
    undefined = {
        "rho: all encoders tied": rho,
        f"top 3 of {len(both)} encoders is everyone": overlap,
    }
    return {
        "n_encoders": len(both),
        "rho": rho,
        "top3_overlap": overlap,
        "crs_winner": encoders[winner],
        "held_out_winner": encoders[actual],
        "winner_recovered": winner == actual,
        "reason": "; ".join(why for why, value in undefined.items() if np.isnan(value)) or None,
    }


def shift_prediction(
    cells: pl.DataFrame,
    metric_rows: pl.DataFrame,
    *,
    probe: str,
    weights: Weights,
) -> pl.DataFrame:
    """Predict the AUROC on each shift target without having used it (paper, section 5.6).

    Returns
    -------
    `SHIFT_PREDICTION`, two rows per dataset and shift target: Spearman's rho of the target's
    full-label macro-AUROC with ``crs_without_shift`` (the aggregate CRS, no shift term in any
    cell) and with ``source_auroc`` (the clean AUROC on the dataset itself). Empty without a
    shift target.
    """
    encoders, datasets = _names(cells, "encoder"), _names(cells, "dataset")
    axes = cell_array(cells, AXES, encoders=encoders, datasets=datasets)
    without = cell_array(
        cells,
        (*AXES[:ROBUSTNESS], "robustness_corruption_only"),
        encoders=encoders,
        datasets=datasets,
    )
    crs = cohort_crs(without, weights=weights)
    rows = []
    for dataset, target, auroc in _target_aurocs(metric_rows, probe, encoders, datasets):
        source = axes[:, datasets.index(dataset), DISCRIMINATION]
        for predictor, values in (("crs_without_shift", crs), ("source_auroc", source)):
            head = {"dataset": dataset, "target": target, "predictor": predictor}
            rows.append(head | _prediction(values, auroc))
    return pl.DataFrame(rows, schema=SHIFT_PREDICTION).fill_nan(None)


def _target_aurocs(
    metric_rows: pl.DataFrame, probe: str, encoders: Sequence[str], datasets: Sequence[str]
) -> Iterator[tuple[str, str, Floats]]:
    """Yield dataset, shift target and the encoders' AUROC on it, shape (K,)."""
    rows = clean_full_label_rows(metric_rows, probe=probe)
    shifted = rows.filter(
        (pl.col("target") != pl.col("dataset")) & pl.col("dataset").is_in(list(datasets))
    )
    for part in shifted.partition_by("dataset", "target", maintain_order=True):
        dataset, target = part.select("dataset", "target").row(0)
        values = cell_array(part, ("macro_auroc",), encoders=encoders, datasets=(dataset,))
        yield dataset, target, values[:, 0, 0]


def _prediction(values: Floats, auroc: Floats) -> dict[str, object]:
    both = np.isfinite(values) & np.isfinite(auroc)
    rho = float(spearman(values[both], auroc[both]))
    reason = f"{both.sum()} encoders, or all tied" if np.isnan(rho) else None
    return {"rho": rho, "n_encoders": int(both.sum()), "reason": reason}
