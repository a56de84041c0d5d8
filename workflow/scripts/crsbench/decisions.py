"""What choosing by CRS changes against choosing by AUROC, and what each axis adds.

Law: rankings are compared on unrounded values. A pair is reversed when the two rankings order it
strictly opposite; a tie is no reversal. Tables are tidy whatever the panel's size; what is
undefined is null, and `reason` says why.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
import polars as pl

from crsbench.arrays import Floats
from crsbench.cell_arrays import cell_array, observed_cells
from crsbench.crs import AXES, aggregate
from crsbench.errors import CrsBenchError
from crsbench.rankings import descending_order, kendall_tau_b, mid_ranks, spearman, top_k_overlap

#: What `informativeness` correlates: the axes, and the areas under the learning curve.
CONSTRUCTS = (*AXES, "aulc", "aulc_log")

DECISIONS = pl.Schema(
    {
        "n_encoders": pl.Int64(),
        "tau_b": pl.Float64(),
        "rho": pl.Float64(),
        "n_pairs": pl.Int64(),
        "n_reversed": pl.Int64(),
        "mean_displacement": pl.Float64(),
        "max_displacement": pl.Float64(),
        "top3_overlap": pl.Float64(),
        "top5_overlap": pl.Float64(),
        "reason": pl.String(),
    }
)
REVERSED_PAIRS = pl.Schema(
    {
        "higher_auroc": pl.String(),
        "higher_crs": pl.String(),
        "auroc_difference": pl.Float64(),
        "crs_difference": pl.Float64(),
    }
)
RANK_MOVES = pl.Schema(
    {
        "encoder": pl.String(),
        "auroc": pl.Float64(),
        "crs": pl.Float64(),
        "auroc_rank": pl.Float64(),
        "crs_rank": pl.Float64(),
        "displacement": pl.Float64(),
    }
)
CORRELATIONS = pl.Schema(
    {
        "level": pl.String(),
        "dataset": pl.String(),
        "first": pl.String(),
        "second": pl.String(),
        "rho": pl.Float64(),
        "n": pl.Int64(),
        "reason": pl.String(),
    }
)


def decisions(auroc: Floats, crs: Floats, *, encoders: Sequence[str]) -> pl.DataFrame:
    """Compare two rankings of one panel, both of shape (K,) (paper, section 5.4).

    Returns
    -------
    One row of `DECISIONS`. Displacements are absolute differences of mid-ranks.

    Raises
    ------
    CrsBenchError
        When a value is NaN, or an array has not one value per encoder.
    """
    _check_values(auroc, crs, encoders)
    if len(encoders) < 2:
        few = {"n_encoders": len(encoders), "reason": f"{len(encoders)} encoders have both"}
        return pl.DataFrame([few], schema=DECISIONS)
    moved = np.abs(mid_ranks(auroc) - mid_ranks(crs))
    row = {
        "n_encoders": len(encoders),
        "tau_b": float(kendall_tau_b(auroc, crs)),
        "rho": float(spearman(auroc, crs)),
        "n_pairs": len(encoders) * (len(encoders) - 1) // 2,
        "n_reversed": len(_reversed(auroc, crs)),
        "mean_displacement": float(moved.mean()),
        "max_displacement": float(moved.max()),
        "top3_overlap": float(top_k_overlap(auroc, crs, k=3)),
        "top5_overlap": float(top_k_overlap(auroc, crs, k=5)),
        "reason": undefined_agreement(auroc, crs),
    }
    return pl.DataFrame([row], schema=DECISIONS).fill_nan(None)


def undefined_agreement(first: Floats, second: Floats) -> str | None:
    """Say why agreement of two rankings, shape (K,), is partly undefined; None if it is not."""
    reasons = []
    if np.isnan(kendall_tau_b(first, second)):
        reasons.append("tau-b and rho: all encoders tied, or fewer than two")
    for k in (3, 5):
        if len(first) <= k:
            reasons.append(f"top {k} of {len(first)} encoders is everyone")
    return "; ".join(reasons) or None


def _check_values(auroc: Floats, crs: Floats, encoders: Sequence[str]) -> None:
    for name, values in (("AUROC", auroc), ("CRS", crs)):
        if values.shape != (len(encoders),):
            raise CrsBenchError(f"{name}: shape {values.shape}, expected ({len(encoders)},)")
        for encoder, value in zip(encoders, values, strict=True):
            if np.isnan(value):
                raise CrsBenchError(f"{name} of {encoder} is undefined; leave the encoder out")


def _reversed(auroc: Floats, crs: Floats) -> list[tuple[int, int]]:
    """Return the pairs (higher AUROC, higher CRS) that the two rankings order oppositely."""
    opposite = (auroc[:, None] > auroc) & (crs[:, None] < crs)
    return [(int(i), int(j)) for i, j in np.argwhere(opposite)]


def reversed_pairs(auroc: Floats, crs: Floats, *, encoders: Sequence[str]) -> pl.DataFrame:
    """Name the pairs that AUROC and CRS order oppositely, both of shape (K,).

    Returns
    -------
    `REVERSED_PAIRS`, largest difference of CRS first; differences are positive.
    """
    _check_values(auroc, crs, encoders)
    rows = [
        (encoders[i], encoders[j], auroc[i] - auroc[j], crs[j] - crs[i])
        for i, j in _reversed(auroc, crs)
    ]
    table = pl.DataFrame(rows, schema=REVERSED_PAIRS, orient="row")
    return table.sort("crs_difference", descending=True, maintain_order=True)


def rank_moves(auroc: Floats, crs: Floats, *, encoders: Sequence[str]) -> pl.DataFrame:
    """Return the rank of each encoder by AUROC and by CRS, best CRS first.

    Returns
    -------
    `RANK_MOVES`; displacement is the AUROC rank less the CRS rank, positive for one that rises.
    """
    _check_values(auroc, crs, encoders)
    by_auroc, by_crs = mid_ranks(auroc), mid_ranks(crs)
    columns = (list(encoders), auroc, crs, by_auroc, by_crs, by_auroc - by_crs)
    table = pl.DataFrame(dict(zip(RANK_MOVES, columns, strict=True)), schema=RANK_MOVES)
    return table[descending_order(crs)]


def informativeness(cells: pl.DataFrame) -> pl.DataFrame:
    """Correlate the axes and the areas under the learning curve (paper, section 5.3).

    Parameters
    ----------
    cells
        The axes of every cell (`axes.AXES_TABLE`).

    Returns
    -------
    `CORRELATIONS` of all pairs of `CONSTRUCTS` at these levels: ``encoder`` (means over the
    observed datasets), ``cell`` (all cells, raw), ``cell_normalised`` (min-max within each data
    set) and ``dataset`` (the cells of each).
    """
    encoders = cells["encoder"].unique(maintain_order=True).to_list()
    datasets = cells["dataset"].unique(maintain_order=True).to_list()
    values = cell_array(cells, CONSTRUCTS, encoders=encoders, datasets=datasets)
    n_constructs = values.shape[-1]
    means = aggregate(values, observed_cells(values[..., : len(AXES)]))
    normalised = _normalised_within_dataset(values).reshape(-1, n_constructs)
    return pl.concat(
        [
            correlations(means, CONSTRUCTS, level="encoder"),
            correlations(values.reshape(-1, n_constructs), CONSTRUCTS, level="cell"),
            correlations(normalised, CONSTRUCTS, level="cell_normalised"),
            *(
                correlations(values[:, d], CONSTRUCTS, level="dataset", dataset=dataset)
                for d, dataset in enumerate(datasets)
            ),
        ]
    )


def _normalised_within_dataset(values: Floats) -> Floats:
    """Return values (K, D, V) on the scale of each dataset's lowest and highest cell."""
    missing = np.isnan(values)
    lower = np.where(missing, np.inf, values).min(axis=0)
    upper = np.where(missing, -np.inf, values).max(axis=0)
    width = np.where(upper > lower, upper - lower, np.nan)
    return (values - np.where(missing, np.nan, lower)) / width


def correlations(
    values: Floats, names: Sequence[str], *, level: str, dataset: str | None = None
) -> pl.DataFrame:
    """Return Spearman's rho of all pairs of columns.

    Parameters
    ----------
    values
        Shape (n, V), one row per encoder or cell; a pair leaves out rows with a NaN in either.
    names
        The V columns.
    level, dataset
        What the rows are, for the table.
    """
    rows = list(_correlation_rows(values, names, {"level": level, "dataset": dataset}))
    return pl.DataFrame(rows, schema=CORRELATIONS).fill_nan(None)


def _correlation_rows(
    values: Floats, names: Sequence[str], where: dict[str, str | None]
) -> Iterator[dict[str, object]]:
    for first, second in combinations(range(len(names)), 2):
        pair = values[:, [first, second]]
        pair = pair[~np.isnan(pair).any(axis=1)]
        rho = float(spearman(pair[:, 0], pair[:, 1]))
        reason = f"{len(pair)} values, or all tied" if np.isnan(rho) else None
        row = {"first": names[first], "second": names[second], "rho": rho, "n": len(pair)}
        yield where | row | {"reason": reason}
