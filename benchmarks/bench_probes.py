"""The logistic probe against scikit-learn, the metrics against a loop, and what a full run costs.

    PYTHONPATH=workflow/scripts python benchmarks/bench_probes.py [--images FOLDER]

Writes benchmarks/probes.md. FOLDER holds ISIC_2019_Training_GroundTruth.csv and the images beside
it, some hundred at least; without it the rows on real images are left out, and the table says so.

A cell is 25 fits: five seeds at five label fractions. At full labels the seeds share their rows;
scikit-learn fits them five times, as a loop over the grid would, and that is a part of the ratio.
Both sides run on one thread, in turns; ratios are of medians. Where one run of scikit-learn takes
minutes, it is timed on fewer fits, and the table says on how many.
"""

import argparse
import csv
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from PIL import Image
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from threadpoolctl import threadpool_info, threadpool_limits

from crsbench.features.table import read_features, write_features
from crsbench.metrics import auroc, average_precision, rank
from crsbench.probes.base import Subset
from crsbench.probes.cell import TrainingSide, fit_cell
from crsbench.probes.logistic import LogisticFit, fit_logistic
from crsbench.probes.losses import Binary, Softmax
from crsbench.probes.objectives import LogisticObjective

FRACTIONS = (0.01, 0.05, 0.10, 0.25, 1.0)
N_SEEDS = 5
TOLERANCE = 1e-6
LARGEST = 133_860, 2_560
OUTPUT = Path(__file__).with_name("probes.md")
#: Encoders of the full benchmark by features, and cells by rows of the train split.
WIDTHS = {768: 8, 1024: 3, 1152: 1, 2048: 2, 2560: 1}
CELLS = {17_700: 15, 2_563: 13, 133_860: 15}


class Shape(NamedTuple):
    """A train split: its source, its size, and how much of scikit-learn's work is timed.

    `seeds` of 5 seeds and `columns` of the labels are timed and scaled up; `rounds` are made.
    """

    source: str
    n: int
    d: int
    n_classes: int
    is_multilabel: bool
    seeds: int
    columns: int
    rounds: int

    def __str__(self) -> str:
        what = "labels" if self.is_multilabel else "classes"
        return f"{self.n:,} x {self.d:,} x {self.n_classes} {what}, {self.source}"


SHAPES = (
    Shape("synthetic", 256, 768, 5, False, 5, 0, 3),
    Shape("real", 256, 768, 5, False, 5, 0, 3),
    Shape("synthetic", 2_563, 768, 5, False, 1, 0, 3),
    Shape("real", 2_563, 768, 5, False, 1, 0, 3),
    Shape("synthetic", 17_700, 768, 8, False, 1, 0, 1),
    Shape("real", 17_700, 768, 8, False, 1, 0, 1),
    Shape("synthetic", 17_700, 1_152, 8, False, 1, 0, 1),
    Shape("synthetic", 134_000, 768, 14, True, 1, 1, 1),
    Shape("synthetic", 1_340, 2_560, 14, True, 1, 14, 3),
)


def power_law(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Return features whose covariance falls as 1/k, and labels of a noisy linear teacher."""
    rng = np.random.default_rng(shape.n + shape.d)
    scales = np.arange(1, shape.d + 1) ** -0.5
    latent = rng.standard_normal((shape.n, shape.d), dtype=np.float32) * scales.astype(np.float32)
    teacher = rng.standard_normal((shape.d, shape.n_classes)) * np.sqrt(scales)[:, None]
    scores = latent @ teacher.astype(np.float32)
    scores /= scores.std(axis=0)
    rotation = np.linalg.qr(rng.standard_normal((shape.d, shape.d)))[0]
    return standardised(latent @ rotation.astype(np.float32)), draw_labels(shape, scores, rng)


def draw_labels(shape: Shape, scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw classes of unequal frequency, or labels of which a twentieth is masked."""
    offsets = np.linspace(0, 3, shape.n_classes)
    if not shape.is_multilabel:
        return (scores - offsets + rng.gumbel(size=scores.shape)).argmax(axis=1)
    labels = (scores - offsets - 1 + rng.logistic(size=scores.shape) > 0).astype(float)
    labels[rng.random(labels.shape) < 0.05] = np.nan
    return labels


def real(shape: Shape, images: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return thumbnails of real images, resampled with a little noise, and their diagnoses."""
    rng = np.random.default_rng(shape.n)
    with (images / "ISIC_2019_Training_GroundTruth.csv").open() as table:
        rows = list(csv.DictReader(table))
    names = list(rows[0])[1:9]
    diagnoses = np.array([np.argmax([float(row[name]) for name in names]) for row in rows])
    common = np.argsort(-np.bincount(diagnoses, minlength=8), kind="stable")[: shape.n_classes]
    size = (16, -(-shape.d // 48))
    thumbnails = np.stack([thumbnail(images, row["image"], size) for row in rows])
    kept = np.flatnonzero(np.isin(diagnoses, common))
    drawn = rng.choice(kept, shape.n)
    features = thumbnails[drawn, : shape.d]
    noise = 0.1 * thumbnails.std(axis=0)[: shape.d]
    features += noise * rng.standard_normal(features.shape, dtype=np.float32)
    return standardised(features), np.searchsorted(np.sort(common), diagnoses[drawn])


def thumbnail(images: Path, name: str, size: tuple[int, int]) -> np.ndarray:
    """Return the pixels of a small version of an image."""
    with Image.open(images / "ISIC_2019_Training_Input" / f"{name}.jpg") as image:
        return np.asarray(image.convert("RGB").resize(size), dtype=np.float32).ravel()


def standardised(features: np.ndarray) -> np.ndarray:
    """Return features with mean 0 and variance 1."""
    return np.ascontiguousarray((features - features.mean(axis=0)) / features.std(axis=0))


def subsets(n: int, n_seeds: int = N_SEEDS) -> Iterator[Subset]:
    """Yield the distinct training sets of a cell, nested for each seed."""
    for fraction in FRACTIONS:
        for seed in range(n_seeds if fraction < 1 else 1):
            order = np.random.default_rng(seed).permutation(n)
            yield Subset(fraction, seed, np.sort(order[: max(round(fraction * n), 12)]))


def fit_ours(shape: Shape, features: np.ndarray, labels: np.ndarray) -> list[LogisticFit]:
    """Fit a whole cell."""
    return fit_logistic(
        features,
        labels,
        list(subsets(shape.n)),
        threads=1,
        task="multilabel" if shape.is_multilabel else "multiclass",
        n_classes=shape.n_classes,
        tolerance=TOLERANCE,
        max_iterations=1000,
    )


class Theirs(NamedTuple):
    """What scikit-learn did: seconds scaled to a cell, weights of each fit by subset and column."""

    seconds: float
    weights: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]


def fit_theirs(shape: Shape, features: np.ndarray, labels: np.ndarray, **settings: float) -> Theirs:
    """Fit a part of a cell with scikit-learn and scale its time to 25 fits of all labels."""
    seconds, weights = 0.0, {}
    columns = range(shape.columns) if shape.is_multilabel else (-1,)
    for number, subset in enumerate(subsets(shape.n, shape.seeds)):
        for column in columns:
            targets = labels[subset.rows] if column < 0 else labels[subset.rows, column]
            known = np.flatnonzero(~np.isnan(targets))
            if len(np.unique(targets[known])) < 2:
                continue
            rows, targets = features[subset.rows[known]], targets[known]
            started = time.perf_counter()
            probe = LogisticRegression(**settings).fit(rows, targets)
            spent = time.perf_counter() - started
            seconds += spent * (N_SEEDS if subset.label_fraction == 1 else N_SEEDS / shape.seeds)
            weights[number, column] = probe.coef_, probe.intercept_
    scale = shape.n_classes / shape.columns if shape.is_multilabel else 1
    return Theirs(seconds * scale, weights)


def excess(
    shape: Shape,
    features: np.ndarray,
    labels: np.ndarray,
    ours: list[LogisticFit],
    theirs: Theirs,
) -> float:
    """Return the largest objective of ours less that of scikit-learn, in float64."""
    by_key = dict(zip(((s.label_fraction, s.seed) for s in subsets(shape.n)), ours, strict=True))
    largest = -np.inf
    timed = list(subsets(shape.n, shape.seeds))
    for (number, column), (weights, intercepts) in theirs.weights.items():
        subset = timed[number]
        fitted = by_key[subset.label_fraction, subset.seed]
        targets = labels[subset.rows] if column < 0 else labels[subset.rows, column]
        known = np.flatnonzero(~np.isnan(targets))
        rows, targets = features[subset.rows[known]], targets[known].astype(int)
        held = np.unique(targets) if column < 0 else [column]
        mine = objective(rows, targets, fitted.coefficients[:, held], fitted.intercept[held])
        largest = max(largest, mine - objective(rows, targets, weights.T, intercepts))
    return largest


def objective(
    rows: np.ndarray, targets: np.ndarray, weights: np.ndarray, intercepts: np.ndarray
) -> float:
    """Return the mean objective of a softmax, or of one logit for a label."""
    logits = rows.astype(float) @ weights.astype(float) + intercepts
    penalty = 0.5 * np.sum(weights.astype(float) ** 2)
    if logits.shape[1] == 1:
        loss = np.logaddexp(0, logits[:, 0]) - targets * logits[:, 0]
    else:
        places = np.searchsorted(np.unique(targets), targets)
        loss = logsumexp(logits, axis=1) - logits[np.arange(len(rows)), places]
    return float((loss.sum() + penalty) / len(rows))


def timed(work: Callable[[], object]) -> tuple[float, object]:
    """Return the seconds that something takes, and what it returns."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


class Row(NamedTuple):
    """A line of the table of probes."""

    shape: Shape
    ours: float
    equal: float
    default: float
    excess: float
    unconverged: int


def compare(shape: Shape, images: Path | None) -> Row:
    """Time a cell of ours and of scikit-learn's, in turns."""
    features, labels = real(shape, images) if images else power_law(shape)
    wide = features.astype(np.float64)
    ours, equal, default = [], [], []
    for _ in range(shape.rounds):
        seconds, fits = timed(lambda: fit_ours(shape, features, labels))
        ours.append(seconds)
        tight = fit_theirs(shape, wide, labels, tol=TOLERANCE, max_iter=10_000)
        equal.append(tight.seconds)
        default.append(fit_theirs(shape, features, labels).seconds)
    return Row(
        shape,
        *(statistics.median(seconds) for seconds in (ours, equal, default)),
        excess=excess(shape, features, labels, fits, tight),
        unconverged=sum(fitted.status != "converged" for fitted in fits),
    )


TABLE_HEAD = (
    "| train split | ours, s | equal norm, s | ratio | default, s | ratio | timed | excess |",
    "|---|--:|--:|--:|--:|--:|---|--:|",
)


def table_line(row: Row) -> str:
    """Return a line of the table of probes."""
    part = f"{row.shape.seeds} of 5 seeds" if row.shape.seeds < N_SEEDS else "all"
    if row.shape.is_multilabel and row.shape.columns < row.shape.n_classes:
        part += f", {row.shape.columns} of {row.shape.n_classes} labels"
    return (
        f"| {row.shape} | {row.ours:.2f} | {row.equal:.1f} | {row.equal / row.ours:.1f} "
        f"| {row.default:.1f} | {row.default / row.ours:.1f} | {part} | {row.excess:.0e} |"
    )


def geometric_mean(ratios: list[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log(ratios))))


def metrics_lines() -> Iterator[str]:
    """Yield what 400 evaluations of AUROC and average precision take, ours and in a loop."""
    rng = np.random.default_rng(0)
    truth = np.eye(8)[rng.integers(0, 8, 5_066)]
    sets = [truth + rng.standard_normal(truth.shape) for _ in range(400)]
    seconds, ours = timed(lambda: [ranked(scores, truth) for scores in sets])
    n_looped = 40
    looped_seconds, looped = timed(lambda: [loop(scores, truth) for scores in sets[:n_looped]])
    looped_seconds *= len(sets) / n_looped
    difference = np.abs(np.array(ours[:n_looped]) - np.array(looped)).max()
    yield (
        f"400 evaluations of 5,066 samples and 8 classes, AUROC and average precision of each "
        f"class: {seconds:.2f} s; a loop over roc_auc_score and average_precision_score "
        f"{looped_seconds:.1f} s (timed on {n_looped}), ratio {looped_seconds / seconds:.1f}, "
        f"largest difference {difference:.0e}."
    )


def ranked(scores: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return AUROC and average precision of each class from one sort a class."""
    ranking = rank(scores, truth)
    return auroc(ranking), average_precision(ranking)


def loop(scores: np.ndarray, truth: np.ndarray) -> tuple[list[float], list[float]]:
    """Return the same from scikit-learn."""
    columns = list(zip(truth.T, scores.T, strict=True))
    return (
        [roc_auc_score(*column) for column in columns],
        [average_precision_score(*column) for column in columns],
    )


def bound_lines() -> Iterator[str]:
    """Yield the rates of one evaluation of the objective, and of what could bound it."""
    square = np.random.default_rng(0).standard_normal((2048, 2048), dtype=np.float32)
    peak = 2 * 2048**3 / best(lambda: square @ square) / 1e9
    yield f"A square product in float32 runs at {peak:.0f} GFLOP/s on one thread."
    for shape in (SHAPES[4], SHAPES[7]):
        yield bound_line(shape)


def bound_line(shape: Shape) -> str:
    """Return the rate of one evaluation, and its share of what its products alone would take."""
    features, labels = power_law(shape)
    truth = np.eye(shape.n_classes, dtype=np.float32)
    loss = Binary.of(labels) if shape.is_multilabel else Softmax(truth[labels])
    evaluated = LogisticObjective(features, loss)
    start, numbers = evaluated.start(), np.arange(loss.n_problems)
    seconds = best(lambda: evaluated.single(start, numbers))
    thin = np.zeros((shape.d, shape.n_classes), np.float32)
    block = features[: 2**18 // shape.d]
    product = best(lambda: block @ thin) * shape.n / len(block) * 2
    reading = best(features.max)
    flops = 4 * shape.n * shape.d * shape.n_classes / 1e9
    what = "memory bandwidth" if reading > product else "the rate of so thin a product"
    return (
        f"One evaluation of {shape}: {seconds * 1e3:.0f} ms, {flops / seconds:.0f} GFLOP/s. Its "
        f"two products alone, on a cached block, would take {product * 1e3:.0f} ms "
        f"({flops / product:.0f} GFLOP/s), reading the matrix once from memory "
        f"{reading * 1e3:.0f} ms: the bound is {what}, and {max(product, reading) / seconds:.0%} "
        "of it is reached."
    )


def best(work: Callable[[], object], rounds: int = 5) -> float:
    """Return the shortest of some times: what the machine can do when left alone."""
    return min(timed(work)[0] for _ in range(rounds))


def hours_line(rows: list[Row]) -> str:
    """Return the hours of the probe stage's fits in a full run, from the times of its shapes."""
    by_rows = {row.shape.n: row.ours for row in rows if row.shape.d == 768}
    seconds = {2_563: by_rows[2_563], 17_700: by_rows[17_700], 133_860: by_rows[134_000]}
    widths = sum(width / 768 * count for width, count in WIDTHS.items())
    hours = sum(seconds[n] * widths * n_cells / 15 for n, n_cells in CELLS.items()) / 3600
    return (
        f"All 1,075 fits of the 43 cells: {hours:.2f} hours on one thread, from the times above, "
        "in proportion to the features of the 15 encoders."
    )


def peak_of(side: str, shape: int) -> float:
    """Return the peak memory in GiB of a process that fits a train split at full labels."""
    command = [sys.executable, __file__, "--peak", side, str(shape)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(finished.stdout)


def print_peak(side: str, number: int) -> None:
    """Fit one train split at full labels and print the peak memory, in GiB."""
    shape = SHAPES[number]
    features, labels = power_law(shape)
    if side == "theirs":
        fit_full_theirs(features, labels)
    elif side == "ours":
        whole = Subset(1.0, 0, np.arange(shape.n))
        fit_logistic(
            features,
            labels,
            [whole],
            threads=1,
            task="multilabel" if shape.is_multilabel else "multiclass",
            n_classes=shape.n_classes,
            tolerance=TOLERANCE,
            max_iterations=5,
        )
    print(peak_memory())


def fit_full_theirs(features: np.ndarray, labels: np.ndarray) -> None:
    """Fit with scikit-learn for a few iterations: memory does not grow with more."""
    columns = [labels] if labels.ndim == 1 else list(labels.T)
    for targets in columns[:2]:
        known = ~np.isnan(targets)
        LogisticRegression(max_iter=5).fit(
            features if known.all() else features[known], targets[known]
        )


def peak_memory() -> float:
    """Return the peak memory of this process in GiB.

    The system's own count of it starts with what the process that started this one had used, so
    the peak is read from /proc where there is one.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def print_largest_peak() -> None:
    """Read and fit the largest cell there is, and print the peak memory, in GiB."""
    rows, names = LARGEST[0], largest_names()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clean.parquet"
        write = [sys.executable, __file__, "--write", str(path)]
        subprocess.run(write, check=True)
        labels = (np.random.default_rng(1).random((rows, 14)) < 0.2).astype(float)
        quarter = np.isin(np.arange(rows), list(subsets(rows, 1))[-2].rows)
        subsamples = pl.DataFrame(
            {"seed": 0, "sample": names, "label_fraction": np.where(quarter, 0.25, 1.0)}
        )
        fit_cell(
            TrainingSide(names, read_features(path, samples=names)[1], labels),
            fit=lambda *given: fit_logistic(
                *given,
                threads=1,
                task="multilabel",
                n_classes=14,
                tolerance=TOLERANCE,
                max_iterations=3,
            ),
            seed_matters=False,
            subsamples=subsamples,
            label_fractions=(0.25, 1.0),
            seeds=(0,),
        )
    print(peak_memory())


def largest_names() -> list[str]:
    """Return names of samples like those of the largest dataset."""
    return [f"patient{row:06d}/study1/view1_frontal.jpg" for row in range(LARGEST[0])]


def write_largest(path: Path) -> None:
    """Write a feature table of the largest size."""
    features = np.random.default_rng(0).standard_normal(LARGEST, dtype=np.float32)
    write_features(pl.DataFrame({"sample": largest_names()}), features, path=path, metadata={})


def memory_lines() -> Iterator[str]:
    """Yield a table of peak memory, and that of the largest cell."""
    yield "| train split at full labels | data alone, GiB | ours | scikit-learn |"
    yield "|---|--:|--:|--:|"
    for number in (4, 7, 8):
        base, ours, theirs = (peak_of(side, number) for side in ("none", "ours", "theirs"))
        yield f"| {SHAPES[number]} | {base:.2f} | {ours:.2f} | {theirs:.2f} |"
    command = [sys.executable, __file__, "--peak", "largest", "0"]
    largest = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    yield ""
    yield (
        "The largest cell, 133,860 x 2,560 x 14 labels, from its Parquet table to its fits: "
        f"{largest:.2f} GiB at the peak (the matrix alone has 1.28)."
    )


def machine_lines() -> Iterator[str]:
    """Yield the machine and the versions."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "scikit-learn"))
    kernels = {library.get("architecture") for library in threadpool_info()} - {None}
    yield (
        f"{processor()}; Python {platform.python_version()}, {packages}, OpenBLAS kernels "
        f"{', '.join(sorted(kernels))}; one thread."
    )


def processor() -> str:
    """Return the processor's name where the system tells it."""
    names = Path("/proc/cpuinfo")
    lines = names.read_text().splitlines() if names.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")


def report(images: Path | None) -> Iterator[str]:
    """Yield the lines of the report."""
    yield "# Probes: measured times"
    yield ""
    yield "Written by `make bench PART=probes`; benchmarks/bench_probes.py says what is timed."
    yield ""
    yield from machine_lines()
    yield ""
    yield from TABLE_HEAD
    rows = []
    for shape in SHAPES:
        if shape.source == "synthetic" or images:
            rows.append(compare(shape, images if shape.source == "real" else None))
            yield table_line(rows[-1])
    yield ""
    yield (
        f"Seconds for the 25 fits of a cell. *Equal norm*: tol {TOLERANCE:g} in float64 for both "
        "(in float32 scikit-learn stops short of it). *Default*: scikit-learn's tol 1e-4 and 100 "
        f"iterations, in float32, against ours at {TOLERANCE:g}. *Excess*: the largest objective "
        "of ours less scikit-learn's at equal norm; below about 1e-8 the two are equal. "
        f"Fits of ours that did not converge: {sum(row.unconverged for row in rows)}."
    )
    if not images:
        yield "No folder of images was given (`--images`): rows on real images are left out."
    yield ""
    yield from bound_lines()
    yield ""
    yield hours_line(rows)
    yield ""
    yield from memory_lines()
    yield ""
    yield from metrics_lines()
    yield ""
    default = geometric_mean([row.default / row.ours for row in rows])
    yield f"probe speed-up at scikit-learn's default, geometric mean: {default:.1f}"
    equal = geometric_mean([row.equal / row.ours for row in rows])
    yield ""
    yield f"probe speed-up, geometric mean: {equal:.1f}"


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path)
    parser.add_argument("--peak", nargs=2)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(1):
        if given.write:
            write_largest(given.write)
        elif given.peak and given.peak[0] == "largest":
            print_largest_peak()
        elif given.peak:
            print_peak(given.peak[0], int(given.peak[1]))
        else:
            lines = []
            for line in report(given.images):
                print(line, flush=True)
                lines.append(line)
            OUTPUT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
