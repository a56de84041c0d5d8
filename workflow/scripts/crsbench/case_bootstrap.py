"""Bootstrap of CRS over the test cases, conditional on the fitted probes.

Law: the groups of a dataset (lesions, patients) are drawn with replacement, those of a shift
target independently of those of its source; a draw is the same for all encoders, label fractions,
conditions and seeds. Everything after the logits is recomputed: AUROC and ECE under the groups'
weights, means over seeds, the four axes, aggregate, anchors and CRS. Crossed with seeds, each
replicate draws the seeds, too.

A dataset that lacks a class in more than 5 % of the replicates has no case bootstrap.

The interval speaks of other cases from the same sources under the same fits; it leaves out what
other training cases would have changed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from crsbench.arrays import Bools, Floats, Integers
from crsbench.case_sets import CaseSet, macro_average, too_often_absent
from crsbench.cell_arrays import cell_array, observed_cells
from crsbench.crs import AXES, Weights, aggregate
from crsbench.errors import DataError
from crsbench.predictions import Fits, SetKey, logits_in_order
from crsbench.probes.base import SCORING
from crsbench.records import CLEAN
from crsbench.reference import AGGREGATE
from crsbench.score_bootstrap import ScoreReplicates, score_replicates, withheld
from crsbench.seed_records import SeedMetrics, axes_of_means

CASES, CROSSED = "cases", "cases_and_label_subsample"

CASE_REPLICATES = pl.Schema(
    {
        "encoder": pl.String(),
        "dataset": pl.String(),
        "resampled": pl.String(),
        "replicate": pl.Int64(),
    }
    | dict.fromkeys(AXES, pl.Float64())
)


def cell_replicates(
    predictions: pl.LazyFrame,
    fits: pl.DataFrame,
    *,
    encoder: str,
    dataset: str,
    cases: Mapping[str, CaseSet],
    label_fractions: Sequence[float],
    perturbed: Sequence[tuple[str, int]],
    seed_counts: Mapping[int, Integers],
) -> pl.DataFrame:
    """Compute the axes of one cell in every replicate.

    Parameters
    ----------
    predictions, fits
        Stored logits and fits of the cell; one evaluated set is read at a time.
    cases
        The drawn test cases of the dataset itself and of each of its shift targets.
    label_fractions
        All label fractions, 1 among them.
    perturbed
        The perturbed conditions that enter robustness.
    seed_counts
        How often each seed was drawn in each replicate, shape (R,), for the crossed variant.

    Returns
    -------
    `CASE_REPLICATES`: R rows with only cases resampled, and R with seeds resampled as well.
    """
    cell = _Cell(predictions, Fits(fits), dataset, cases, tuple(seed_counts))
    metrics = cell.metrics(sorted(label_fractions), perturbed)
    drawn = np.stack(list(seed_counts.values()), axis=1)
    n_targets = (len(cases) - 1,)
    tables = []
    for resampled, counts in ((CASES, np.ones_like(drawn)), (CROSSED, drawn)):
        axes = axes_of_means(_means(metrics, counts), n_targets)[:, 0, 0]
        columns = {"replicate": np.arange(len(axes))} | dict(zip(AXES, axes.T, strict=True))
        names = {"encoder": encoder, "dataset": dataset, "resampled": resampled}
        table = pl.DataFrame(columns).with_columns(
            pl.lit(value).alias(name) for name, value in names.items()
        )
        tables.append(table.select(pl.col(n).cast(t) for n, t in CASE_REPLICATES.items()))
    return pl.concat(tables).fill_nan(None)


@dataclass(frozen=True)
class _Cell:
    """The stored predictions of one cell, scored under the draws one evaluated set at a time."""

    predictions: pl.LazyFrame
    fits: Fits
    dataset: str
    cases: Mapping[str, CaseSet]
    seeds: tuple[int, ...]

    def metrics(
        self, fractions: Sequence[float], perturbed: Sequence[tuple[str, int]]
    ) -> SeedMetrics:
        """Return metrics by seed and replicate: (S, R, ...) where `SeedMetrics` has (S, K, D)."""
        own = self.cases[self.dataset]
        low = [self._macros(fraction) for fraction in fractions if fraction < 1.0]
        full = self._by_seed(1.0, lambda seed: self._auroc(1.0, seed, self.dataset))
        conditions = [self._macros(1.0, *condition) for condition in perturbed]
        shifts = [self._shift(full, name) for name in self.cases if name != self.dataset]
        blank = np.full((2, *full.shape[:2], 0), np.nan)
        source, target = np.stack(shifts, axis=-1) if shifts else blank
        macro = np.stack([macro_average(values, own.present) for values in full])
        return SeedMetrics(
            auroc=np.stack([*low, macro], axis=-1),
            ece=self._by_seed(1.0, lambda seed: self._ece(seed)),
            perturbed=np.stack(conditions, axis=-1) if conditions else blank[0],
            shift_source=source,
            shift_target=target,
        )

    def _by_seed(self, fraction: float, compute: Callable[[int], Floats]) -> Floats:
        """Compute once per distinct fit; stack by seed, (S, R, ...)."""
        fit_seeds = [self.fits.at(fraction, seed)["fit_seed"] for seed in self.seeds]
        computed = {fit_seed: compute(fit_seed) for fit_seed in dict.fromkeys(fit_seeds)}
        return np.stack([computed[fit_seed] for fit_seed in fit_seeds])

    def _macros(self, fraction: float, perturbation: str = CLEAN, severity: int = 0) -> Floats:
        """Return macro-AUROC on the own test side under one condition, (S, R)."""
        present = self.cases[self.dataset].present
        return self._by_seed(
            fraction,
            lambda seed: macro_average(
                self._auroc(fraction, seed, self.dataset, perturbation, severity), present
            ),
        )

    def _shift(self, at_source: Floats, target: str) -> Floats:
        """Return AUROC at source and target over the classes present at both, (2, S, R)."""
        present = self.cases[self.dataset].present & self.cases[target].present
        at_target = self._by_seed(1.0, lambda seed: self._auroc(1.0, seed, target))
        return np.array(
            [[macro_average(values, present) for values in side] for side in (at_source, at_target)]
        )

    def _auroc(
        self,
        fraction: float,
        seed: int,
        target: str,
        perturbation: str = CLEAN,
        severity: int = 0,
    ) -> Floats:
        """Return class AUROCs (R, C) of one evaluated set; all NaN after a failed fit."""
        cases = self.cases[target]
        logits = self._logits(SetKey(fraction, seed, target, perturbation, severity))
        return np.full(cases.present.shape, np.nan) if logits is None else cases.class_auroc(logits)

    def _ece(self, seed: int) -> Floats:
        cases = self.cases[self.dataset]
        logits = self._logits(SetKey(1.0, seed, self.dataset, CLEAN, 0))
        return np.full(len(cases.present), np.nan) if logits is None else cases.ece(logits)

    def _logits(self, key: SetKey) -> Floats | None:
        """Read the logits (N, C) of one evaluated set, rows as in its cases."""
        if self.fits.at(key.label_fraction, key.seed)["status"] not in SCORING:
            return None
        wanted = [pl.col(name) == value for name, value in key._asdict().items()]
        rows = self.predictions.filter(*wanted, pl.col("side") == "test").collect()
        return logits_in_order(rows, self.cases[key.target].side.samples, key=key).astype(float)


def _means(metrics: SeedMetrics, counts: Integers) -> SeedMetrics:
    """Average metrics (S, R, ...) over the seeds that each replicate drew, counts (R, S)."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    means = {}
    for name, values in vars(metrics).items():
        by_replicate = shares.T.reshape(*shares.T.shape, *[1] * (values.ndim - 2))
        excess = (by_replicate * (values - values[0])).sum(axis=0)
        means[name] = (values[0] + excess)[:, None, None]
    return SeedMetrics(**means)


def score_cases(
    replicates: pl.DataFrame,
    cells: pl.DataFrame,
    absences: pl.DataFrame,
    *,
    scope: str,
    resampled: str,
    weights: Weights,
) -> ScoreReplicates:
    """Score the replicates of all cells together.

    Parameters
    ----------
    replicates
        `CASE_REPLICATES` of every cell.
    cells
        The axes of every cell (`axes.AXES_TABLE`): the point estimate.
    absences
        `ABSENCES` of every dataset.
    scope
        ``aggregate``, or a dataset for its own CRS.
    resampled
        `CASES` or `CROSSED`.

    Raises
    ------
    DataError
        When an observed cell lacks replicates.
    """
    encoders = tuple(cells["encoder"].unique(maintain_order=True))
    datasets = (
        tuple(cells["dataset"].unique(maintain_order=True)) if scope == AGGREGATE else (scope,)
    )
    point = cell_array(cells, AXES, encoders=encoders, datasets=datasets)
    observed = observed_cells(point)
    member = np.flatnonzero(observed.any(axis=1))
    names = [encoders[place] for place in member]
    chosen = replicates.filter(pl.col("resampled") == resampled)
    axes = _replicate_array(chosen, names, datasets, observed[member])
    scores = score_replicates(
        aggregate(axes, observed[member]),
        np.ones(len(axes), np.int64),
        point_axes=aggregate(point[member], observed[member]),
        encoders=names,
        resampled=resampled,
        weights=weights,
    )
    reason = too_often_absent(absences, datasets)
    return withheld(scores, reason) if reason else scores


def _replicate_array(
    replicates: pl.DataFrame, encoders: Sequence[str], datasets: Sequence[str], observed: Bools
) -> Floats:
    """Return axes (R, K, D, 4) from one row per replicate and cell."""
    parts = replicates.sort("replicate").partition_by("encoder", "dataset", as_dict=True)
    n_replicates = max((len(part) for part in parts.values()), default=0)
    axes = np.full((n_replicates, *observed.shape, len(AXES)), np.nan)
    for k, d in np.argwhere(observed):
        part = parts.get((encoders[k], datasets[d]))
        found = 0 if part is None else len(part)
        if part is None or found != n_replicates:
            raise DataError(
                f"case bootstrap of {encoders[k]} on {datasets[d]}: {found} replicates, expected "
                f"{n_replicates}; run the case bootstrap of this cell again"
            )
        axes[:, k, d] = part.select(pl.col(AXES).fill_null(np.nan)).to_numpy()
    return axes
