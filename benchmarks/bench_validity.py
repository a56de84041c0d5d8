"""Time of bootstrap and validity at full size, and the cost of the case bootstrap, on one core.

    PYTHONPATH=workflow/scripts python benchmarks/bench_validity.py

15 encoders, 43 cells, 5 seeds: synthetic run records with the keys of the full benchmark. Each
time is the median CPU time of several rounds. The goal is under 2 s for 10,000 paired
replicates, the exact distribution, all panels, insertions and weight draws with their tables.

The case bootstrap is timed on one evaluated set of each data set with the test side of its full
size, and multiplied by the number of distinct sets of all 43 cells.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import polars as pl
from threadpoolctl import threadpool_limits

from crsbench.case_sets import CaseSet, draw_cases
from crsbench.cell_arrays import observed_cells
from crsbench.crs import Weights, aggregate
from crsbench.digests import generator
from crsbench.evaluation import Scoring
from crsbench.records import RUN_RECORD, Cell, conditions, enumerate_run_keys
from crsbench.score_bootstrap import (
    ScoreReplicates,
    axis_table,
    difference_table,
    interval_table,
    rank_table,
    tier_table,
)
from crsbench.seed_bootstrap import bootstrap_paired, bootstrap_per_dataset, enumerate_paired
from crsbench.seed_records import SeedRecords, cell_axes, collect_seed_records
from crsbench.sides import Side
from crsbench.validity import insertions, panels, weight_draws

ENCODERS = tuple(f"encoder_{place:02d}" for place in range(15))
DATASETS = ("isic2019", "aptos2019", "chexpert")
WITHOUT_APTOS = ENCODERS[-2:]
FRACTIONS = (0.01, 0.05, 0.10, 0.25, 1.0)
CONDITIONS = conditions(("blur", "jpeg", "contrast", "rician", "fov"), (1, 2, 3))
SEEDS = range(5)
N_ROUNDS = 5


class FullSide(NamedTuple):
    """A test side of full size, and how often its like is scored.

    A cell has 36 distinct evaluated sets: on clean images 20 fits at low label fractions and one
    at full labels, and 15 perturbed conditions; a shift target has one.
    """

    task: Literal["multiclass", "ordinal", "multilabel"]
    n_cases: int
    n_groups: int
    n_classes: int
    n_cells: int
    n_sets: int


FULL_SIDES = {
    "isic2019": FullSide("multiclass", 5_066, 2_370, 8, 15, 36),
    "aptos2019": FullSide("ordinal", 732, 700, 5, 13, 36),
    "chexpert": FullSide("multilabel", 38_246, 12_950, 14, 15, 36),
    "mimic_cxr": FullSide("multilabel", 3_403, 290, 14, 15, 1),
}
WEIGHTS = Weights((0.60, 0.25, 0.15), (0.25, 0.25, 0.25, 0.25))
N_SEED_REPLICATES = 10_000
N_CASE_REPLICATES = 512
SHOWN_REPLICATES = 2_000


def full_size_records() -> pl.DataFrame:
    """Return 17,575 run records with random metrics; full-label metrics do not vary by seed."""
    cells = [
        Cell(encoder, dataset)
        for encoder in ENCODERS
        for dataset in DATASETS
        if not (dataset == "aptos2019" and encoder in WITHOUT_APTOS)
    ]
    keys = enumerate_run_keys(
        cells,
        probes=["logistic"],
        label_fractions=FRACTIONS,
        seeds=SEEDS,
        conditions=CONDITIONS,
        shift={"chexpert": ["mimic_cxr"]},
    )
    rows = [key._asdict() | random_metrics(*key) for key in keys]
    return pl.DataFrame(rows, schema=RUN_RECORD)


def random_metrics(*key: str | float | int) -> dict[str, object]:
    """Return metrics that are the same for all seeds at full labels."""
    *_, fraction, _, _, seed = key
    identity = key[:-1] if fraction == 1.0 else (*key[:-1], seed)
    classes = generator(*identity).uniform(0.6, 0.95, 14)
    return {"macro_auroc": classes.mean(), "ece": classes[0] / 10, "class_auroc": classes.tolist()}


def tables(scores: ScoreReplicates) -> list[pl.DataFrame]:
    """Return all tables of a bootstrap."""
    makers = (interval_table, rank_table, difference_table, tier_table, axis_table)
    return [make(scores) for make in makers]


def seconds(work: Callable[[], object]) -> float:
    """Return the median CPU time of one call."""
    times = []
    for _ in range(N_ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def show(name: str, duration: float) -> float:
    """Print one line and return its time."""
    sys.stdout.write(f"{name:58s}{duration:10.3f} s\n")
    return duration


def time_validity() -> None:
    """Print the time of each analysis, and of those of the goal together."""
    run_records = full_size_records()

    def collect() -> SeedRecords:
        return collect_seed_records(
            run_records, probe="logistic", encoders=ENCODERS, datasets=DATASETS
        )

    records = collect()
    cells = cell_axes(records, np.ones((1, len(SEEDS)), np.int64))[0]
    axes = aggregate(cells, observed_cells(cells))
    goal = {
        "10,000 paired replicates, with tables": lambda: tables(
            bootstrap_paired(
                records, generator=generator(0), n_replicates=N_SEED_REPLICATES, weights=WEIGHTS
            )
        ),
        "exact distribution (126 multisets), with tables": lambda: tables(
            enumerate_paired(records, weights=WEIGHTS)
        ),
        "panels: 15 + 200 + 200, and 455 + 3,003 enumerated": lambda: panels(
            axes, ENCODERS, generator=generator(0), sizes=(12, 10), n_draws=200, weights=WEIGHTS
        ),
        "insertions: 30 of 12 + 3": lambda: insertions(
            axes, ENCODERS, generator=generator(0), n_trials=30, weights=WEIGHTS
        ),
        "weights: 500 + 500 + 1": lambda: weight_draws(
            axes, ENCODERS, generator=generator(0), n_draws=500, weights=WEIGHTS
        ),
    }
    show(f"({len(run_records):,} run records to arrays)", seconds(collect))
    total = sum(show(name, seconds(work)) for name, work in goal.items())
    show("together (goal: under 2 s)", total)

    def per_dataset() -> ScoreReplicates:
        return bootstrap_per_dataset(
            records, generator=generator(0), n_replicates=N_SEED_REPLICATES, weights=WEIGHTS
        )

    by_dataset = per_dataset()
    show(
        "(option: 10,000 replicates, seeds drawn per data set)",
        seconds(per_dataset),
    )
    show("(its tables)", seconds(lambda: tables(by_dataset)))


def drawn_cases(name: str) -> CaseSet:
    """Return synthetic test cases of a data set's full size, with drawn groups."""
    side = FULL_SIDES[name]
    random = generator("cases", name)
    if side.task == "multilabel":
        prevalence = np.linspace(0.02, 0.55, side.n_classes)
        labels = (random.uniform(size=(side.n_cases, side.n_classes)) < prevalence).astype(float)
    else:
        labels = random.integers(side.n_classes, size=side.n_cases)
    groups = [str(group) for group in random.integers(side.n_groups, size=side.n_cases)]
    classes = [str(place) for place in range(side.n_classes)]
    scoring = Scoring(
        task=side.task,
        classes=classes,
        dropped=(),
        n_bins=15,
        specificity=0.9,
        binary_confidence="positive",
    )
    truth = labels if side.task == "multilabel" else np.eye(side.n_classes)[labels]
    cases = Side([str(case) for case in range(side.n_cases)], labels, truth)
    return draw_cases(cases, groups, scoring, n_replicates=N_CASE_REPLICATES, generator=random)


def time_cases() -> None:
    """Print the cost of one evaluated set of each data set, and of all 43 cells."""
    sys.stdout.write(f"\ncase bootstrap, {N_CASE_REPLICATES} replicates of one evaluated set\n")
    total = 0.0
    for name, side in FULL_SIDES.items():
        cases = drawn_cases(name)
        logits = generator("logits", name).normal(size=(side.n_cases, side.n_classes))
        auroc = smallest(lambda cases=cases, logits=logits: cases.class_auroc(logits))
        ece = smallest(lambda cases=cases, logits=logits: cases.ece(logits))
        show(f"  {name}: AUROC of {side.n_classes} columns, {side.n_cases:,} cases", auroc)
        show(f"  {name}: ECE", ece)
        total += side.n_cells * (side.n_sets * auroc + (ece if side.n_sets > 1 else 0.0))
    whole = total * SHOWN_REPLICATES / N_CASE_REPLICATES / 60
    sys.stdout.write(f"all 43 cells, {SHOWN_REPLICATES:,} replicates: {whole:.1f} core minutes\n")


def smallest(work: Callable[[], object]) -> float:
    """Return the smallest CPU time of two calls; the first one may prepare what both need."""
    times = []
    for _ in range(2):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    """Print all figures."""
    threadpool_limits(1)
    sys.stdout.write(f"numpy {np.__version__}, polars {pl.__version__}, one thread\n")
    time_validity()
    time_cases()


if __name__ == "__main__":
    main()
