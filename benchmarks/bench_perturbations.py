"""Time of the fifteen perturbed images against plain NumPy and Pillow, on one core.

    PYTHONPATH=workflow/scripts python benchmarks/bench_perturbations.py

The plain operators are those of `tests/test_perturbations.py`: whole-image float64 arrays and
the same bytes, which is checked here before anything is timed. Each time is the
smallest CPU time of several rounds, in which plain and fast take turns, so that a busy machine
disturbs both alike.
"""

import runpy
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from scipy import ndimage
from threadpoolctl import threadpool_limits

from crsbench.perturbations import PERTURBATIONS, Pixels, library_versions, perturb

TESTS = runpy.run_path(str(Path(__file__).parents[1] / "tests" / "test_perturbations.py"))
PLAIN, SEVERITIES = TESTS["plain_perturb"], TESTS["SEVERITIES"]
SIZES = {"224 x 224": (224, 224), "1024 x 853": (853, 1024), "1024 x 1024": (1024, 1024)}
N_ROUNDS = 7


def photograph(height: int, width: int, *, grey: bool) -> Pixels:
    """Return smooth noise over the full range, which a JPEG codec finds about as hard."""
    levels = np.random.Generator(np.random.PCG64(0)).random((height, width, 3))
    levels = ndimage.gaussian_filter(levels, (3, 3, 0))
    levels = (levels - levels.min()) / np.ptp(levels) * 255
    image = levels.astype(np.uint8)
    return np.repeat(image[..., :1], 3, axis=2) if grey else image


def three_severities(operator: Callable, image: Pixels, perturbation: str) -> list[Pixels]:
    """Return the three perturbed images of one perturbation."""
    return [operator(image, perturbation, strength, 1) for strength in SEVERITIES[perturbation]]


def fast(image: Pixels, perturbation: str, strength: float, seed: int) -> Pixels:
    """Call `perturb` with the plain operators' signature."""
    return perturb(image, perturbation=perturbation, strength=strength, seed=seed)


def milliseconds(work: Callable[[], object]) -> float:
    """Return the CPU time of one call in ms."""
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1e3


def compare(image: Pixels, perturbation: str) -> tuple[float, float]:
    """Return ms of the three severities, (plain, fast), after checking that bytes are equal."""
    operators = [partial(three_severities, each, image, perturbation) for each in (PLAIN, fast)]
    np.testing.assert_array_equal(operators[1](), operators[0]())
    rounds = [[milliseconds(operator) for operator in operators] for _ in range(N_ROUNDS)]
    plain, quick = np.min(rounds, axis=0)
    return float(plain), float(quick)


def table(title: str, image: Pixels) -> str:
    """Return the lines of one image size."""
    times = {name: compare(image, name) for name in PERTURBATIONS}
    times["all 15"] = (sum(t[0] for t in times.values()), sum(t[1] for t in times.values()))
    lines = [f"\n{title:26s}{'plain ms':>10s}{'ms':>10s}{'ratio':>8s}   (three severities)"]
    lines += [f"  {name:24s}{p:10.2f}{q:10.2f}{p / q:8.1f}" for name, (p, q) in times.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the tables."""
    sys.stdout.write(f"{library_versions()}\n")
    threadpool_limits(1)
    for size, shape in SIZES.items():
        for kind in ("colour", "grey"):
            sys.stdout.write(table(f"{size}, {kind}", photograph(*shape, grey=kind == "grey")))


if __name__ == "__main__":
    main()
