"""What the probe stage and the evaluation of the full benchmark take, in hours of one thread.

Fits: the times of the comparison, the slower of synthetic and real rows, in proportion to the
features of the 15 encoders. Scoring and evaluation: one test side of each dataset under the 21
distinct fits of a cell, at the encoders' mean number of features, through the workflow's own steps
(read the table of features, score, write the predictions; read them, make records), times the
sides of a cell and the cells. The features and coefficients are random, which costs the same.
"""

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench.config import read_yaml
from crsbench.evaluation import Scoring, evaluate_cell
from crsbench.features.table import read_features, write_features
from crsbench.files import read_parquet, write_parquet
from crsbench.probes.base import Features, Subset
from crsbench.probes.cell import CellFits, EvaluatedSet, TrainingSide, fit_cell, score_cell
from crsbench.probes.logistic import LogisticFit, score_logistic
from crsbench.records import RunKey
from crsbench.sides import Side
from crsbench.splits import Task
from probe_fits import Comparison
from probe_shapes import FRACTIONS, N_SEEDS, SHAPES, Shape
from timing import timed

#: Encoders of the full benchmark by number of features, and the mean of that number.
WIDTHS = {768: 8, 1024: 3, 1152: 1, 2048: 2, 2560: 1}
MEAN_WIDTH = sum(width * count for width, count in WIDTHS.items()) // sum(WIDTHS.values())
PROBES = read_yaml(Path(__file__).parents[1] / "config" / "config.yaml")["probes"]


class Dataset(NamedTuple):
    """A dataset of the full benchmark.

    Attributes
    ----------
    shape
        The timed train split of its size.
    n_test
        Samples of its test side.
    n_cells
        Encoders that are probed on it.
    sides
        Sets that are scored in a cell, in test sides: 16 conditions, the calibration side, which
        is half as large, and for CheXpert the 3,300 images of MIMIC-CXR-JPG.
    """

    name: str
    shape: Shape
    n_test: int
    n_cells: int
    sides: float


STAGE = (
    Dataset("ISIC 2019", SHAPES[2], 5_066, 15, 16.5),
    Dataset("APTOS 2019", SHAPES[1], 733, 13, 16.5),
    Dataset("CheXpert", SHAPES[4], 38_246, 15, 16.5 + 3_300 / 38_246),
)


def stage_table(rows: Sequence[Comparison]) -> Iterator[str]:
    """Yield hours by dataset and their sum."""
    yield "| dataset | cells | fits, h | reading, scoring, writing, h | evaluation, h |"
    yield "|---|--:|--:|--:|--:|"
    hours = np.array([_hours(dataset, rows) for dataset in STAGE])
    for dataset, of_dataset in zip(STAGE, hours, strict=True):
        yield f"| {dataset.name} | {dataset.n_cells} | {_cells(of_dataset)} |"
    yield f"| all | {sum(d.n_cells for d in STAGE)} | {_cells(hours.sum(axis=0))} |"
    yield ""
    yield (
        f"1,075 fits and 17,575 evaluations on one thread: {hours.sum():.2f} hours, for the probes "
        f"that run by default ({', '.join(PROBES)}). Fits: those of the first table at 768 "
        f"features, in proportion to the encoders' mean of {MEAN_WIDTH:,}; scoring and evaluation: "
        "one test side of each dataset, times the sides and cells."
    )


def _cells(hours: NDArray[np.float64]) -> str:
    return " | ".join(f"{value:.2f}" for value in hours)


def _hours(dataset: Dataset, rows: Sequence[Comparison]) -> tuple[float, float, float]:
    """Return the hours of fits, scoring and evaluation."""
    alike = [row.ours for row in rows if row.shape[:4] == dataset.shape[:4]]
    fits = max(alike) * MEAN_WIDTH / dataset.shape.d
    scoring, evaluation = (seconds * dataset.sides for seconds in scored_set(dataset))
    return tuple(s * dataset.n_cells / 3600 for s in (fits, scoring, evaluation))


def scored_set(dataset: Dataset) -> tuple[float, float]:
    """Return the seconds of scoring one test side under a cell's fits, and of evaluating it."""
    made, names = _MadeUp(dataset), [f"sample {row:06d}" for row in range(dataset.n_test)]
    fits = made.fits()
    with tempfile.TemporaryDirectory() as folder:
        features, predictions = Path(folder) / "clean.parquet", Path(folder) / "predictions.parquet"
        rows = made.rng.standard_normal((dataset.n_test, MEAN_WIDTH), dtype=np.float32)
        write_features(pl.DataFrame({"sample": names}), rows, path=features, metadata={})
        scoring, table = timed(lambda: made.score(fits, names, features, predictions))
        side = made.side(names)
        return scoring, timed(lambda: made.evaluate(predictions, table, side))[0]


class _MadeUp:
    """A cell of a dataset with random fits."""

    def __init__(self, dataset: Dataset) -> None:
        self.rng = np.random.default_rng(0)
        self.task: Task = dataset.shape.task
        self.n_classes = dataset.shape.n_classes

    def side(self, names: list[str]) -> Side:
        classes = self.rng.integers(self.n_classes, size=len(names))
        if self.task == "multiclass":
            return Side(names, classes, np.eye(self.n_classes)[classes])
        truth = (self.rng.random((len(names), self.n_classes)) < 0.2).astype(float)
        return Side(names, truth, truth)

    def fits(self) -> CellFits:
        """Return 21 distinct fits, made of nothing."""
        names = [f"sample {row:03d}" for row in range(200)]
        rows = self.rng.standard_normal((len(names), MEAN_WIDTH), dtype=np.float32)
        least_fractions = np.quantile(FRACTIONS, np.linspace(0, 1, len(names)), method="higher")
        subsamples = [
            pl.DataFrame(
                {
                    "seed": seed,
                    "sample": names,
                    "label_fraction": self.rng.permutation(least_fractions),
                }
            )
            for seed in range(N_SEEDS)
        ]
        return fit_cell(
            TrainingSide(names, rows, self.side(names).labels),
            fit=self._random_fits,
            seed_matters=False,
            subsamples=pl.concat(subsamples),
            label_fractions=FRACTIONS,
            seeds=range(N_SEEDS),
        )

    def _random_fits(
        self, features: Features, _labels: NDArray[Any], subsets: Sequence[Subset]
    ) -> list[LogisticFit]:
        shape = features.shape[1], self.n_classes
        return [
            LogisticFit(
                coefficients=self.rng.standard_normal(shape) / np.sqrt(shape[0]),
                intercept=np.zeros(self.n_classes),
                status="converged",
                reason=None,
                iterations=1,
                gradient_norm=0.0,
                objective=0.0,
                n_train=len(subset.rows),
            )
            for subset in subsets
        ]

    def score(
        self, fits: CellFits, names: list[str], features: Path, predictions: Path
    ) -> pl.DataFrame:
        """Score a table of features, write the predictions and return the table of fits."""
        rows = EvaluatedSet("own", "test", "clean", 0, *read_features(features, samples=names))
        table, of_fits = score_cell(
            fits, [rows], score=partial(score_logistic, threads=1), n_classes=self.n_classes
        )
        write_parquet(table, predictions)
        return of_fits

    def evaluate(self, predictions: Path, fits: pl.DataFrame, side: Side) -> pl.DataFrame:
        """Make the records of the predictions."""
        classes = [f"class {number}" for number in range(self.n_classes)]
        keys = [
            RunKey("logistic", "made up", "own", "own", fraction, "clean", 0, seed)
            for fraction in FRACTIONS
            for seed in range(N_SEEDS)
        ]
        return evaluate_cell(
            read_parquet(predictions),
            fits,
            keys=keys,
            evaluated={"own": side},
            scoring=Scoring(self.task, classes, [], 15, 0.9, "positive"),
            identity={"own": {}},
        )
