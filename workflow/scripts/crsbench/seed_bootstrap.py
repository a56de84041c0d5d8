"""Bootstrap of CRS over the shared seeds: the label-subsample interval.

Law: a replicate draws as many seeds as there are, with replacement, the same for all encoders and
cells (or, as an option, anew for each dataset); the axes of every cell, the aggregate, anchors
and CRS are recomputed. With a convex fit and a fixed split all seeds coincide at full labels, so
what varies is the label subsample: the interval says nothing about the sampling of cases.

The axes of a cell depend on the drawn multiset alone, so they are computed once for each distinct
multiset: five seeds have 126.
"""

import numpy as np

from crsbench.arrays import Integers
from crsbench.cell_arrays import observed_cells
from crsbench.crs import Weights, aggregate
from crsbench.resampling import distinct_multisets, draw_multisets, enumerate_multisets
from crsbench.score_bootstrap import ScoreReplicates, score_replicates, withheld
from crsbench.seed_records import SeedRecords, cell_axes, panel_of

ONE_SEED = "one seed: there is nothing to resample"


def bootstrap_paired(
    records: SeedRecords,
    *,
    generator: np.random.Generator,
    n_replicates: int,
    weights: Weights,
) -> ScoreReplicates:
    """Draw the same seeds for all cells in each replicate (paper, section 5.1)."""
    counts = draw_multisets(records.n_seeds, n_replicates=n_replicates, generator=generator)
    distinct, place = distinct_multisets(counts)
    multiplicity = np.bincount(place, minlength=len(distinct))
    return _scored(records, distinct, None, multiplicity, "label_subsample", weights)


def enumerate_paired(records: SeedRecords, *, weights: Weights) -> ScoreReplicates:
    """Return the exact distribution that `bootstrap_paired` draws from."""
    counts, multiplicity = enumerate_multisets(records.n_seeds)
    return _scored(records, counts, None, multiplicity, "label_subsample_exact", weights)


def bootstrap_per_dataset(
    records: SeedRecords,
    *,
    generator: np.random.Generator,
    n_replicates: int,
    weights: Weights,
) -> ScoreReplicates:
    """Draw seeds anew for each dataset, the same for all encoders."""
    n_draws = n_replicates * len(records.datasets)
    counts = draw_multisets(records.n_seeds, n_replicates=n_draws, generator=generator)
    distinct, place = distinct_multisets(counts)
    drawn = place.reshape(n_replicates, len(records.datasets))
    once = np.ones(n_replicates, np.int64)
    return _scored(records, distinct, drawn, once, "label_subsample_per_dataset", weights)


def _scored(
    records: SeedRecords,
    distinct: Integers,
    drawn: Integers | None,
    multiplicity: Integers,
    resampled: str,
    weights: Weights,
) -> ScoreReplicates:
    """Score replicates: the distinct multisets (U, S), or those `drawn` (R, D) by dataset."""
    panel = panel_of(records)
    point = cell_axes(panel, np.ones((1, panel.n_seeds), np.int64))[0]
    axes = cell_axes(panel, distinct)
    if drawn is not None:
        axes = np.stack([axes[place, :, d] for d, place in enumerate(drawn.T)], axis=2)
    observed = observed_cells(point)
    scores = score_replicates(
        aggregate(axes, observed),
        multiplicity,
        point_axes=aggregate(point, observed),
        encoders=panel.encoders,
        resampled=resampled,
        weights=weights,
    )
    return withheld(scores, ONE_SEED) if panel.n_seeds == 1 else scores
