"""The probes against scikit-learn, the metrics against a loop, and what a full run costs.

    PYTHONPATH=workflow/scripts python benchmarks/bench_probes.py [--data-root FOLDER] [--only TEXT]

Writes benchmarks/probes.md, when all is done, in half an hour or so. FOLDER holds aptos2019/,
isic2019/ and chexpert/ as config/mini.yaml takes them; without it there are no rows on real images,
and the page says so. `--only` times the train splits whose line has the text, such as
"2,563 x 768", on `--threads` threads, prints their lines and writes nothing.

What is timed and how: the docstrings of probe_shapes, probe_fits, probe_others, probe_bounds,
probe_stage, probe_memory and probe_metrics. The logistic probe is compared on one thread and on as
many as the machine has cores; all else runs on one.
"""

import argparse
import os
import platform
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_info, threadpool_limits

from crsbench.files import write_text
from probe_bounds import bound_lines
from probe_fits import TOLERANCE, Comparison, compare
from probe_memory import can_tell, largest_line, memory_table
from probe_metrics import metrics_line
from probe_others import others_table
from probe_shapes import N_SEEDS, SHAPES, Shape, make
from probe_stage import stage_table

OUTPUT = Path(__file__).with_name("probes.md")
TABLE_HEAD = (
    "| train split | ours, s | equal norm, s | ratio | distinct fits | default, s | ratio "
    "| distinct fits | scikit-learn timed on | excess | iterations | gradient | theirs |",
    "|---|--:|--:|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|",
)
NOTES = f"""
Seconds for a cell: 25 fits, five seeds at 1, 5, 10, 25 and 100 % of the labels, medians of three
runs of scikit-learn and six of ours in turns; from 17,700 rows on of one and two. *Equal norm*:
gradient at most {TOLERANCE:g} on both sides, scikit-learn in float64, since in float32 it stops
short of it. *Default*: scikit-learn's tol 1e-4 and 100 iterations, in float32, against ours at
{TOLERANCE:g}. At 100 % the five seeds have the same rows: ours fits them once, scikit-learn in a
loop five times, which is a part of the ratios; *distinct fits* are the ratios that count them once
on both sides. *Timed on*: what scikit-learn's times are scaled from. *Excess*: the largest mean
objective of ours less scikit-learn's at equal norm; two that stop at this norm differ by some
1e-8. *Iterations*: the most of a fit of ours. *Gradient*, *theirs*: the largest component of
any mean gradient at the end, ours and scikit-learn's at equal norm, computed by the benchmark
itself.

*Threads*: both sides have the same number. Ours are fits side by side, each with a BLAS of one
thread. Scikit-learn's are those of BLAS, which takes all cores unless it is told otherwise, and
splits each product among them, however small: with two it is slower than with one, most of all on
small fits, and that is the larger part of the ratios there. Whoever limits it to one thread
compares with the first table.
""".strip()
MEMORY_NOTES = (
    "At equal norm scikit-learn needs the features in float64. Ours holds a matrix of the "
    "features' width squared, or of the rows' number squared, which scikit-learn does without: on "
    "all but the largest split it takes some megabytes more than scikit-learn's default, on the "
    "smallest also more than at equal norm."
)
NO_IMAGES = "No folder of images was given (`--data-root`): rows on real images are left out."
RESAMPLED = (
    "Real rows are features of some hundred images, each drawn several times and moved by noise of "
    "their own covariance (half their spread) until they are as many."
)


def table_line(row: Comparison) -> str:
    """Return a line of the table of probes."""
    return (
        f"| {row.shape} | {row.ours:.2f} | {row.equal:.1f} | {row.equal / row.ours:.1f} "
        f"| {row.equal_distinct / row.ours:.1f} | {row.default:.1f} | {row.default / row.ours:.1f} "
        f"| {row.default_distinct / row.ours:.1f} | {timed_on(row.shape)} | {row.excess:.0e} "
        f"| {row.iterations} | {row.norm:.1e} | {row.their_norm:.1e} |"
    )


def timed_on(shape: Shape) -> str:
    """Return what scikit-learn's times are scaled from."""
    parts = [f"{shape.seeds} of {N_SEEDS} seeds"] if shape.seeds < N_SEEDS else []
    if shape.task == "multilabel":
        parts.append(f"{shape.columns} of {shape.n_classes} labels")
    return ", ".join(parts) or "all"


def machine_line(n_cores: int) -> str:
    """Return the machine and the versions."""
    names = ("numpy", "scipy", "scikit-learn", "torch")
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    kernels = {library.get("architecture") for library in threadpool_info()} - {None}
    return (
        f"{processor()}, {n_cores} cores; Python {platform.python_version()}, {packages}, OpenBLAS "
        f"kernels {', '.join(sorted(kernels))}. One thread, where nothing else is said."
    )


def processor() -> str:
    """Return the processor's name where the system tells it, else its kind."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.machine()


def shapes(data_root: Path | None, only: str) -> list[Shape]:
    """Return the train splits whose lines have the text, each synthetic and on real images."""
    sources = ("synthetic", "real") if data_root else ("synthetic",)
    every = [shape._replace(source=source) for shape in SHAPES for source in sources]
    return [shape for shape in every if only in str(shape)]


def speed_up_lines(rows: dict[int, list[Comparison]]) -> Iterator[str]:
    """Yield geometric means of the ratios: by number of threads and part, then of all."""
    for threads, of_threads in rows.items():
        yield from (f"On {threads_text(threads)}, geometric means:", "")
        for name, seconds in (
            ("equal norm", lambda row: row.equal),
            ("equal norm, distinct fits", lambda row: row.equal_distinct),
            ("scikit-learn's default", lambda row: row.default),
            ("scikit-learn's default, distinct fits", lambda row: row.default_distinct),
        ):
            ratios = {row.shape: seconds(row) / row.ours for row in of_threads}
            parts = sorted({shape.source for shape in ratios})
            means = (f"{geometric_mean(ratios, part):.1f} on {part}" for part in parts)
            yield f"- {name}: {geometric_mean(ratios):.1f} ({', '.join(means)} features)"
        yield ""
    yield from _best_of_threads_lines(rows)
    equal = {row.shape: row.equal / row.ours for row in rows[1]}
    yield f"probe speed-up, geometric mean: {geometric_mean(equal):.1f}"


def _best_of_threads_lines(rows: dict[int, list[Comparison]]) -> Iterator[str]:
    """Yield the ratio to scikit-learn's default on the number of threads that suits it best."""
    if len(rows) == 1:
        return
    threads, most = max(rows.items())
    ratios = {
        mine.shape: min(each.default for each in same) / mine.ours
        for mine, *same in zip(most, *rows.values(), strict=True)
    }
    yield (
        f"Ours on {threads} threads against scikit-learn's default on one or on {threads}, "
        f"whichever is faster, geometric mean: {geometric_mean(ratios):.1f}"
    )
    yield ""


def threads_text(threads: int) -> str:
    """Return a number of threads in words."""
    return "one thread" if threads == 1 else f"{threads} threads"


def geometric_mean(ratios: dict[Shape, float], source: str = "") -> float:
    """Return the geometric mean, of all shapes or of those of a source."""
    chosen = [ratio for shape, ratio in ratios.items() if source in shape.source]
    return float(np.exp(np.mean(np.log(chosen))))


def report(data_root: Path | None) -> Iterator[str]:
    """Yield the lines of the page."""
    n_cores = os.cpu_count() or 1
    yield from ("# Probes: measured times", "")
    yield "Written by `make bench PART=probes`; benchmarks/bench_probes.py says what is timed."
    yield from ("", machine_line(n_cores))
    rows: dict[int, list[Comparison]] = {}
    for threads in sorted({1, n_cores}):
        yield from ("", f"## Logistic regression, {threads_text(threads)}", "", *TABLE_HEAD)
        rows[threads] = []
        for shape in shapes(data_root, only=""):
            rows[threads].append(compare(shape, data_root, threads=threads))
            yield table_line(rows[threads][-1])
        unconverged = sum(row.unconverged for row in rows[threads])
        yield from ("", f"Fits of ours that did not converge: {unconverged}.")
    yield from ("", "How to read them:", "", NOTES)
    yield from ("", RESAMPLED if data_root else NO_IMAGES, "", "## What bounds it", "")
    yield from bound_lines()
    yield from ("", "## The full benchmark", "")
    yield from stage_table(rows[1])
    yield from ("", "## Peak memory", "")
    if can_tell():
        yield from memory_table((str(shape), *make(shape)) for shape in SHAPES)
        yield from ("", MEMORY_NOTES, "", largest_line())
    else:
        yield "This system does not tell the peak memory of a process."
    yield from ("", "## The other probes", "")
    yield from others_table()
    yield from ("", "benchmarks/probe_others.py says what differs.", "", "## Metrics", "")
    yield from (metrics_line(), "", "## Speed-up", "")
    yield from speed_up_lines(rows)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--only", metavar="TEXT")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(1):
        if given.only is None:
            write_text("".join(f"{line}\n" for line in told(report(given.data_root))), OUTPUT)
            return
        chosen = shapes(given.data_root, given.only)
        if not chosen:
            parser.error(
                f"no train split has {given.only!r} in its line; see SHAPES in probe_shapes"
            )
        lines = (
            table_line(compare(shape, given.data_root, threads=given.threads)) for shape in chosen
        )
        list(told(chain(TABLE_HEAD, lines)))


def told(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines, and print each as soon as there is one."""
    for line in lines:
        print(line, flush=True)
        yield line


if __name__ == "__main__":
    main()
