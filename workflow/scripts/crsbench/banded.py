"""Banded matrices for blur and field of view, whose products with grey levels are exact.

Blur and field of view of levels X are R X C' with banded matrices R and C. Their weights are
whole multiples of 2^-22 that sum to 1 in each row, so that every partial sum needs at most
8 + 22 + 22 = 52 bits and is exact in float64. Hence BLAS, a plain loop, any order of addition,
fused multiply-add and any number of threads give the same bytes. Each weight errs by at most
2^-23 (the middle one takes up the rest), the result by a hundredth of a grey level at worst.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.intp]

_TRUNCATE_SIGMA = 4.0
_WEIGHT_BITS = 22
# Rows of one dense block of a banded matrix, on sides up to 512 px and above: fastest of 16 to 96.
_OUTPUTS_PER_BLOCK = (16, 32)
_VALUES_BETWEEN = 80_000  # of a first product at a time: few calls of BLAS, all in the cache


class Block(NamedTuple):
    """A dense block of a banded matrix: outputs = weights @ inputs.

    Its transpose is kept beside it, row by row: BLAS takes half as long over it as over a view.
    """

    outputs: slice
    inputs: slice
    weights: Floats
    transposed: Floats


def multiply(rows: Sequence[Block], levels: Floats, columns: Sequence[Block]) -> Pixels:
    """Return R X C' of every plane of `levels` (H, 1 or 3, W), exact before the one rounding.

    A few blocks of output rows at a time go through both products, so that what lies between
    them stays in the cache. Convex weights cannot leave 0..255: nothing is clipped.
    """
    height, n_planes, width = levels.shape
    product = np.empty((height, width, n_planes), dtype=np.uint8)
    side_by_side = levels.reshape(height, n_planes * width)
    n_blocks = max(1, _VALUES_BETWEEN // (len(rows[0].weights) * side_by_side.shape[1]))
    for start in range(0, len(rows), n_blocks):
        blocks = rows[start : start + n_blocks]
        between = _multiply_rows(blocks, side_by_side).reshape(-1, width)
        exact = _multiply_columns(between, columns)
        places = product[blocks[0].outputs.start : blocks[-1].outputs.stop].transpose(0, 2, 1)
        np.rint(exact.reshape(places.shape), out=places, casting="unsafe")
    return product


def _multiply_rows(blocks: Sequence[Block], columns: Floats) -> Floats:
    first, last = blocks[0].outputs.start, blocks[-1].outputs.stop
    product = np.empty((last - first, columns.shape[1]))
    for block in blocks:
        places = slice(block.outputs.start - first, block.outputs.stop - first)
        np.matmul(block.weights, columns[block.inputs], out=product[places])
    return product


def _multiply_columns(rows: Floats, blocks: Sequence[Block]) -> Floats:
    product = np.empty_like(rows)
    for block in blocks:
        np.matmul(rows[:, block.inputs], block.transposed, out=product[:, block.outputs])
    return product


# Three strengths and two sides make six tables (about 2 MB each) for images of one size.
@lru_cache(maxsize=24)
def blur_blocks(n: int, sigma: float) -> tuple[Block, ...]:
    """Return the matrix (n, n) of a Gaussian blur with mirrored edges, `sigma` in pixels."""
    radius = int(_TRUNCATE_SIGMA * sigma + 0.5)
    offsets = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offsets / sigma) ** 2)
    weights = _whole_multiples(kernel / kernel.sum())
    weights[radius] += 1 - weights.sum()
    mirrored = (np.arange(n)[:, None] + offsets) % (2 * n)
    indices = np.minimum(mirrored, 2 * n - 1 - mirrored)
    return _dense_blocks(indices, np.broadcast_to(weights, indices.shape))


@lru_cache(maxsize=24)
def zoom_blocks(n: int, fraction: float) -> tuple[Block, ...]:
    """Return the matrix (n, n) that enlarges the central fraction, linear between neighbours."""
    centre = (n - 1) / 2
    positions = centre + (np.arange(n) - centre) * fraction
    lower = np.floor(positions).astype(np.intp)
    upper = _whole_multiples(positions - lower)
    indices = np.stack([lower, np.minimum(lower + 1, n - 1)], axis=1)
    return _dense_blocks(indices, np.stack([1 - upper, upper], axis=1))


def _whole_multiples(weights: Floats) -> Floats:
    return np.rint(weights * 2**_WEIGHT_BITS) / 2**_WEIGHT_BITS


def _dense_blocks(indices: Integers, weights: Floats) -> tuple[Block, ...]:
    """Return the blocks of the matrix with `weights` (n, k) at the columns `indices` (n, k)."""
    n = len(indices)
    n_outputs = _OUTPUTS_PER_BLOCK[n > 512]
    slices = [slice(start, min(start + n_outputs, n)) for start in range(0, n, n_outputs)]
    return tuple(_dense_block(part, indices[part], weights[part]) for part in slices)


def _dense_block(outputs: slice, indices: Integers, weights: Floats) -> Block:
    first = int(indices.min())
    n_rows, n_columns = len(indices), int(indices.max()) + 1 - first
    places = np.arange(n_rows)[:, None] * n_columns + (indices - first)
    dense = np.zeros(n_rows * n_columns)
    np.add.at(dense, places.ravel(), weights.ravel())  # mirrored taps meet in one place
    weights = dense.reshape(n_rows, n_columns)
    inputs = slice(first, first + n_columns)
    return Block(outputs, inputs, weights, np.ascontiguousarray(weights.T))
