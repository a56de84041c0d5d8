"""The tables of the validity analyses, by the name of their file.

Law: every analysis is of the run's own panel, the members of its cohort, whatever reference the
table of scores is relative to. Each table is tidy and there whatever the panel's size; what is
undefined is null, and `reason` says why.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from crsbench.arrays import Floats
from crsbench.cell_arrays import cell_array, observed_cells, why_no_crs
from crsbench.config import Validity
from crsbench.crs import AXES, Weights, aggregate, score_cohort
from crsbench.decisions import decisions, informativeness, rank_moves, reversed_pairs
from crsbench.digests import generator
from crsbench.probe_agreement import probe_agreement
from crsbench.reference import AGGREGATE
from crsbench.sensitivity import (
    complete_members,
    estimator_substitutions,
    leave_one_dataset_out,
    shift_prediction,
    variant_scores,
    variants_table,
)
from crsbench.validity import insertions, panels, summarise_agreement, weight_draws

Tables = dict[str, pl.DataFrame]

#: The displacements of an insertion that are summarised.
DISPLACEMENTS = ("cumulative", "single", "fixed_reference")


def validity_tables(
    cells: pl.DataFrame,
    metric_rows: pl.DataFrame,
    *,
    probe: str,
    ordinal_datasets: Sequence[str],
    draws: Validity,
    seed: int,
    weights: Weights,
) -> Tables:
    """Return the tables of all validity analyses.

    Parameters
    ----------
    cells
        The axes of every cell (`axes.AXES_TABLE`).
    metric_rows
        Metric rows (`records.METRIC_ROW`). Those of `probe` are used, and the others for what
        compares them with it.
    ordinal_datasets
        Datasets whose own CRS is recomputed with QWK and ordinal MAE.
    draws
        How many panels, insertions and weights are drawn.
    seed
        What the draws follow from.
    weights
        Component and axis weights.
    """
    encoders, axes = panel_axes(cells)
    observed = [name for name in ordinal_datasets if name in set(cells["dataset"])]
    substitutions = estimator_substitutions(
        cells, metric_rows, probe=probe, ordinal_datasets=observed, weights=weights
    )
    completed = complete_members(cells, weights=weights)
    return {
        **_stability_tables(axes, encoders, draws, seed, weights),
        **_decision_tables(cells, weights),
        "informativeness": informativeness(cells),
        "estimators": variants_table(substitutions),
        "complete_members": variants_table(completed),
        "variant_scores": variant_scores([*substitutions, *completed]),
        "leave_one_dataset_out": leave_one_dataset_out(
            cells, weights=weights, target=draws.held_out_target
        ),
        "shift_prediction": shift_prediction(cells, metric_rows, probe=probe, weights=weights),
        "probe_agreement": probe_agreement(metric_rows, primary=probe),
    }


def panel_axes(cells: pl.DataFrame, scope: str = AGGREGATE) -> tuple[list[str], Floats]:
    """Return the encoders with an observed cell in a scope, and their raw axes (K, 4)."""
    encoders = cells["encoder"].unique(maintain_order=True).to_list()
    datasets = cells["dataset"].unique(maintain_order=True).to_list()
    values = cell_array(
        cells, AXES, encoders=encoders, datasets=datasets if scope == AGGREGATE else [scope]
    )
    observed = observed_cells(values)
    member = np.flatnonzero(observed.any(axis=1))
    return [encoders[place] for place in member], aggregate(values[member], observed[member])


def _stability_tables(
    axes: Floats, encoders: Sequence[str], draws: Validity, seed: int, weights: Weights
) -> Tables:
    def random(name: str) -> np.random.Generator:
        return generator("validity", name, seed)

    compared = panels(
        axes,
        encoders,
        generator=random("panels"),
        sizes=draws.panel_sizes,
        n_draws=draws.panel_draws,
        weights=weights,
    )
    inserted = insertions(
        axes,
        encoders,
        generator=random("insertions"),
        n_trials=draws.insertion_trials,
        weights=weights,
    )
    weighted = weight_draws(
        axes,
        encoders,
        generator=random("weights"),
        n_draws=draws.weight_draws,
        factors=draws.weight_factors,
        weights=weights,
    )
    return {
        "panels": compared,
        "panel_summary": summarise_agreement(compared, ["kind", "size"]),
        "insertions": inserted,
        "insertion_summary": summarise_displacements(inserted),
        "weights": weighted,
        "weight_summary": summarise_agreement(weighted, ["family"]),
    }


def summarise_displacements(table: pl.DataFrame) -> pl.DataFrame:
    """Summarise the displacements of all insertions, one row for each of `DISPLACEMENTS`."""
    return pl.concat(
        table.select(
            pl.lit(name).alias("displacement"),
            pl.col(name).count().alias("n"),
            pl.col(name).mean().alias("mean"),
            pl.col(name).median().alias("median"),
            pl.col(name).max().alias("max"),
            pl.col("reason").drop_nulls().first(),
        )
        for name in DISPLACEMENTS
    )


def _decision_tables(cells: pl.DataFrame, weights: Weights) -> Tables:
    """Compare choosing by AUROC with choosing by CRS, in the aggregate and on each dataset."""
    parts = {
        scope: _decisions_in(*panel_axes(cells, scope), weights)
        for scope in (AGGREGATE, *cells["dataset"].unique(maintain_order=True))
    }
    return {
        name: pl.concat(
            tables[name].select(pl.lit(scope).alias("scope"), pl.all())
            for scope, tables in parts.items()
        )
        for name in ("decisions", "reversed_pairs", "rank_moves")
    }


def _decisions_in(encoders: Sequence[str], axes: Floats, weights: Weights) -> Tables:
    reason = why_no_crs(axes, encoders)
    kept = [] if reason else list(encoders)
    crs = np.empty(0) if reason else score_cohort(axes, weights=weights).crs
    auroc = axes[: len(kept), AXES.index("discrimination")]
    compared = decisions(auroc, crs, encoders=kept)
    return {
        "decisions": compared.with_columns(reason=pl.lit(reason)) if reason else compared,
        "reversed_pairs": reversed_pairs(auroc, crs, encoders=kept),
        "rank_moves": rank_moves(auroc, crs, encoders=kept),
    }
