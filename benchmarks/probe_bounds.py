"""What bounds the fits: the rate of thin products or the memory, and how much of it is reached.

The bound of one evaluation of the objective is the longer of two times: its two products alone, on
a block of rows that is in the cache, and reading the features once from memory.
"""

from collections.abc import Iterator

import numpy as np

from crsbench.probes.base import Features
from crsbench.probes.logistic import fit_rows
from crsbench.probes.objectives import LogisticObjective
from crsbench.probes.problems import problem_of
from crsbench.probes.thin import blocks, scores, weighted_sums
from probe_fits import MAX_ITERATIONS, TOLERANCE
from probe_shapes import SHAPES, Shape, make
from timing import least, timed


def bound_lines() -> Iterator[str]:
    """Yield the rate of a square product, and what evaluations and fits reach."""
    square = np.random.default_rng(0).standard_normal((2048, 2048), dtype=np.float32)
    peak = 2 * 2048**3 / least(lambda: square @ square) / 1e9
    yield f"A square product in float32 runs at {peak:.0f} GFLOP/s on one thread."
    for shape in (SHAPES[2], SHAPES[4]):
        yield ""
        yield _bound_line(shape, peak)


def _bound_line(shape: Shape, peak: float) -> str:
    """Return the rate of one evaluation and of a whole fit, and their shares of the bound.

    `peak` is the rate of a square product in GFLOP/s.
    """
    features, labels = make(shape)
    loss = problem_of(labels, task=shape.task).loss
    evaluated = LogisticObjective(features, loss)
    start, numbers = evaluated.start(), np.arange(loss.n_problems)
    seconds = least(lambda: evaluated.single(start, numbers))
    product, reading = _products(shape, features), least(features.max)
    bound = max(product, reading)
    fit, fitted = timed(
        lambda: fit_rows(
            features,
            labels,
            task=shape.task,
            n_classes=shape.n_classes,
            tolerance=TOLERANCE,
            max_iterations=MAX_ITERATIONS,
        )
    )
    flops = 4 * shape.n * shape.d * shape.n_classes / 1e9
    what = "memory bandwidth" if reading > product else "the rate of so thin a product"
    return (
        f"One evaluation of {shape}: {seconds * 1e3:.0f} ms, {flops / seconds:.0f} GFLOP/s. Its "
        f"two products alone, on a cached block, would take {product * 1e3:.0f} ms "
        f"({flops / product:.0f} GFLOP/s), reading the matrix once from memory "
        f"{reading * 1e3:.0f} ms: the bound is {what}, and {bound / seconds:.0%} of it is reached, "
        f"{flops / seconds / peak:.0%} of the square product's rate. "
        f"The whole fit at full labels: {fit:.2f} s; {fitted.iterations} iterations, the most that "
        f"a column took, would take {fitted.iterations * bound:.2f} s at the bound "
        f"({fitted.iterations * bound / fit:.0%})."
    )


def _products(shape: Shape, features: Features) -> float:
    """Return the seconds of the two products of an evaluation, on one block in the cache."""
    rows, pieces = next(blocks(features, shape.n_classes, np.float32))
    slopes = np.zeros((shape.n_classes, shape.d), np.float32)
    residuals = scores(slopes, pieces)
    forward = least(lambda: scores(slopes, pieces), rounds=50)
    back = least(lambda: weighted_sums(residuals, pieces), rounds=50)
    return shape.n / rows.stop * (forward + back)
