"""Run records as arrays by seed, and the axes of cells under any multiset of seeds.

Law: metric rows are averaged over the seeds first; ratios, drops and maxima are formed from these
means. A cell without records stays NaN, and what is undefined for one seed is undefined in every
mean, as in a metric row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import polars as pl

from crsbench.arrays import Bools, Floats, Integers
from crsbench.axes import label_efficiency, relative_drops, robustness
from crsbench.cell_arrays import observed_cells
from crsbench.errors import DataError
from crsbench.records import CLEAN
from crsbench.resampling import average_over_units


@dataclass(frozen=True)
class SeedMetrics:
    """What the axes are made of, by seed; NaN in cells that are missing or undefined.

    Attributes
    ----------
    auroc
        Clean macro-AUROC at each label fraction, ascending, the last one all labels, (S, K, D, F).
    ece
        Clean ECE with all labels, (S, K, D).
    perturbed
        Macro-AUROC with all labels under the J perturbed conditions, (S, K, D, J).
    shift_source, shift_target
        Full-label AUROC on the own test side and on the dataset's T shift targets, each over the
        classes defined on both, (S, K, D, T); NaN beyond a dataset's targets.
    """

    auroc: Floats
    ece: Floats
    perturbed: Floats
    shift_source: Floats
    shift_target: Floats

    def averaged(self, counts: Integers) -> "SeedMetrics":
        """Return the means under each multiset of seeds, counts (R, S); S becomes R."""
        means = {
            field.name: average_over_units(getattr(self, field.name), counts)
            for field in fields(self)
        }
        return SeedMetrics(**means)


@dataclass(frozen=True)
class SeedRecords:
    """The run records of a panel as arrays, encoders (K) by datasets (D) by seeds (S).

    Attributes
    ----------
    encoders, datasets, seeds
        Their names, in the arrays' order.
    metrics
        The metrics by seed.
    n_targets
        Number of shift targets of each dataset, (D,).
    """

    encoders: tuple[str, ...]
    datasets: tuple[str, ...]
    seeds: tuple[int, ...]
    metrics: SeedMetrics
    n_targets: tuple[int, ...]

    @property
    def n_seeds(self) -> int:
        """The number of seeds."""
        return len(self.seeds)

    def of_dataset(self, dataset: str) -> "SeedRecords":
        """Return the records of one dataset: those of a domain's CRS."""
        place = self.datasets.index(dataset)
        return replace(
            self,
            datasets=(dataset,),
            metrics=_select(self.metrics, 2, [place]),
            n_targets=(self.n_targets[place],),
        )

    def of_encoders(self, kept: Sequence[int]) -> "SeedRecords":
        """Return the records of the encoders at these places."""
        names = tuple(self.encoders[place] for place in kept)
        return replace(self, encoders=names, metrics=_select(self.metrics, 1, list(kept)))


def _select(metrics: SeedMetrics, axis: int, places: list[int]) -> SeedMetrics:
    taken = {
        field.name: np.take(getattr(metrics, field.name), places, axis=axis)
        for field in fields(metrics)
    }
    return SeedMetrics(**taken)


def collect_seed_records(
    run_records: pl.DataFrame, *, probe: str, encoders: Sequence[str], datasets: Sequence[str]
) -> SeedRecords:
    """Arrange run records as arrays.

    Parameters
    ----------
    run_records
        Run records (`records.RUN_RECORD`); those of other probes, encoders and datasets are left
        out.
    encoders, datasets
        The panel, in the order that breaks ties. A cell without any record stays NaN.

    Raises
    ------
    DataError
        When there are no records of the probe, or when a cell has records but not exactly one for
        each seed and condition that the other cells have.
    """
    rows = run_records.filter(
        (pl.col("probe") == probe)
        & pl.col("encoder").is_in(list(encoders))
        & pl.col("dataset").is_in(list(datasets))
    )
    if rows.is_empty():
        raise DataError(f"run records: none of probe {probe} for the encoders and datasets asked")
    cube = _Cube.of(rows, tuple(encoders), tuple(datasets))
    own = rows.filter(pl.col("target") == pl.col("dataset"))
    clean = own.filter(pl.col("perturbation") == CLEAN)
    full = own.filter(pl.col("label_fraction") == 1.0)
    if full.is_empty():
        raise DataError("run records: none with all labels (label_fraction 1)")
    perturbed = full.filter(pl.col("perturbation") != CLEAN)
    source, target, n_targets = _shift_arrays(rows.filter(pl.col("label_fraction") == 1.0), cube)
    metrics = SeedMetrics(
        auroc=cube.fill(clean, "macro_auroc", ("label_fraction",)),
        ece=cube.fill(full.filter(pl.col("perturbation") == CLEAN), "ece", ())[..., 0],
        perturbed=cube.fill(perturbed, "macro_auroc", ("perturbation", "severity")),
        shift_source=source,
        shift_target=target,
    )
    return SeedRecords(cube.encoders, cube.datasets, cube.seeds, metrics, n_targets)


@dataclass(frozen=True)
class _Cube:
    """The names along the first three dimensions of the arrays, and which cells have records.

    `present` has shape (K, D).
    """

    encoders: tuple[str, ...]
    datasets: tuple[str, ...]
    seeds: tuple[int, ...]
    present: Bools

    @classmethod
    def of(
        cls, rows: pl.DataFrame, encoders: tuple[str, ...], datasets: tuple[str, ...]
    ) -> "_Cube":
        present = np.zeros((len(encoders), len(datasets)), bool)
        present[_places(rows["encoder"], encoders), _places(rows["dataset"], datasets)] = True
        return cls(encoders, datasets, tuple(sorted(rows["seed"].unique())), present)

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.seeds), len(self.encoders), len(self.datasets)

    def fill(self, rows: pl.DataFrame, column: str, condition: tuple[str, ...]) -> Floats:
        """Return a column as an array (S, K, D, conditions), conditions in ascending order."""
        conditions = sorted(set(rows.select(condition).iter_rows())) if condition else [()]
        keys = [rows[name].to_list() for name in condition]
        found = list(zip(*keys, strict=True)) if keys else [()] * len(rows)
        places = (
            _places(rows["seed"], self.seeds),
            _places(rows["encoder"], self.encoders),
            _places(rows["dataset"], self.datasets),
            _places(found, conditions),
        )
        values = np.full((*self.shape, len(conditions)), np.nan)
        n_found = np.zeros(values.shape, np.int64)
        np.add.at(n_found, places, 1)
        self._check(n_found, column, conditions)
        values[places] = rows[column].cast(pl.Float64).fill_null(np.nan).to_numpy()
        return values

    def _check(
        self, n_found: Integers, column: str, conditions: Sequence[tuple[object, ...]]
    ) -> None:
        wrong = np.argwhere((n_found != 1) & self.present[None, :, :, None])
        if len(wrong):
            s, k, d, condition = wrong[0]
            where = f"{self.encoders[k]} on {self.datasets[d]}, seed {self.seeds[s]}"
            what = "/".join(str(part) for part in conditions[condition]) or "all labels"
            raise DataError(
                f"run records of {where}, {what}: {n_found[tuple(wrong[0])]} with {column}, "
                f"expected 1 ({len(wrong)} such cases); evaluate this cell again"
            )


def _places(values: Sequence[object] | pl.Series, names: Sequence[object]) -> Integers:
    place = {name: index for index, name in enumerate(names)}
    return np.array([place[value] for value in values], np.int64)


def _shift_arrays(full: pl.DataFrame, cube: _Cube) -> tuple[Floats, Floats, tuple[int, ...]]:
    """Return AUROC over common classes at source and target, (S, K, D, T), and T by dataset."""
    clean = full.filter(pl.col("perturbation") == CLEAN)
    targets = {
        dataset: sorted(
            clean.filter((pl.col("dataset") == dataset) & (pl.col("target") != dataset))[
                "target"
            ].unique()
        )
        for dataset in cube.datasets
    }
    n_targets = tuple(len(names) for names in targets.values())
    source = np.full((*cube.shape, max(n_targets)), np.nan)
    target = source.copy()
    for (encoder, dataset), cell in clean.group_by("encoder", "dataset"):
        k, d = cube.encoders.index(str(encoder)), cube.datasets.index(str(dataset))
        for place, name in enumerate(targets[str(dataset)]):
            pair = _common_auroc(cell, str(dataset), name, cube.seeds)
            source[:, k, d, place], target[:, k, d, place] = pair
    return source, target, n_targets


def _common_auroc(
    cell: pl.DataFrame, dataset: str, target: str, seeds: Sequence[int]
) -> tuple[Floats, Floats]:
    """Return AUROC (S,) at source and target over the classes defined at both for every seed."""
    at_source = _class_auroc(cell.filter(pl.col("target") == dataset), seeds)
    at_target = _class_auroc(cell.filter(pl.col("target") == target), seeds)
    if at_source.shape != at_target.shape:
        raise DataError(
            f"run records of {cell['encoder'][0]} on {dataset} and {target}: class_auroc has shape "
            f"{at_source.shape} and {at_target.shape}, seeds by classes; expected the same"
        )
    common = ~np.isnan(at_source + at_target).any(axis=0)
    if not common.any():
        return np.full(len(seeds), np.nan), np.full(len(seeds), np.nan)
    return at_source[:, common].mean(axis=1), at_target[:, common].mean(axis=1)


def _class_auroc(rows: pl.DataFrame, seeds: Sequence[int]) -> Floats:
    by_seed: Mapping[int, Sequence[float | None]] = dict(
        rows.select("seed", "class_auroc").iter_rows()
    )
    missing = [seed for seed in seeds if by_seed.get(seed) is None]
    if missing or len(rows) != len(seeds):
        where = f"{rows['encoder'][0]} on {rows['target'][0]}" if len(rows) else "a shift target"
        raise DataError(f"run records of {where}: {len(rows)} records for {len(seeds)} seeds")
    return np.array([by_seed[seed] for seed in seeds], np.float64)


def cell_axes(records: SeedRecords, counts: Integers) -> Floats:
    """Return the raw axes of every cell under multisets of seeds.

    Parameters
    ----------
    records
        The run records.
    counts
        How often each seed was drawn, shape (R, S).

    Returns
    -------
    Shape (R, K, D, 4); NaN where missing or undefined.
    """
    return axes_of_means(records.metrics.averaged(counts), records.n_targets)


def axes_of_means(means: SeedMetrics, n_targets: Sequence[int]) -> Floats:
    """Return raw axes (R, K, D, 4) from metrics (R, K, D, ...) that are averaged over seeds.

    `n_targets` is the number of shift targets of each of the D datasets; the shift term is the
    mean over them.
    """
    full = means.auroc[..., -1]
    drops = relative_drops(full, means.perturbed)
    robust = robustness(drops)
    for d, n in enumerate(n_targets):
        if n:
            shift = _shift_drops(means, d, n).mean(axis=-1)
            robust[..., d] = robustness(drops[:, :, d], shift=shift)
    efficiency = label_efficiency(means.auroc[..., :-1], full)
    return np.stack([full, 1 - means.ece, efficiency, robust], axis=-1)


def _shift_drops(means: SeedMetrics, dataset: int, n_targets: int) -> Floats:
    source = means.shift_source[:, :, dataset, :n_targets]
    target = means.shift_target[:, :, dataset, :n_targets]
    return relative_drops(source, target[..., None])[..., 0]


def panel_of(records: SeedRecords) -> SeedRecords:
    """Return the records of the encoders that have at least one observed cell."""
    every_seed_once = np.ones((1, records.n_seeds), np.int64)
    observed = observed_cells(cell_axes(records, every_seed_once)[0])
    return records.of_encoders(np.flatnonzero(observed.any(axis=1)).tolist())
