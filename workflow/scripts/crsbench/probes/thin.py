"""Products of a tall matrix with a few vectors, in pieces that BLAS takes as they are.

A product of few columns gains nothing from the repacking that makes large products fast. OpenBLAS
leaves it out of small ones, which was seen to double the speed: up to a million multiplications,
and with a transposed matrix up to some 0.8 million.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crsbench.probes.base import Floats

#: Multiplications of a piece.
_SMALL = 700_000
#: Numbers of a block of pieces: it stays in the cache between its two products.
_BLOCK = 2**19
_LEAST_ROWS = 16


def blocks(matrix: NDArray[Any], n_vectors: int) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield the rows of a matrix ``(N, D)`` by block, as a slice and as pieces ``(B, n, D)``.

    Parameters
    ----------
    matrix
        C-contiguous.
    n_vectors
        How many vectors it is to be multiplied with.
    """
    n_rows, width = matrix.shape
    piece = _SMALL // (n_vectors * width) // _LEAST_ROWS * _LEAST_ROWS or _LEAST_ROWS
    step = piece * max(1, _BLOCK // (piece * width))
    whole = n_rows // piece * piece
    for first in range(0, whole, step):
        rows = slice(first, min(first + step, whole))
        yield rows, matrix[rows].reshape(-1, piece, width)
    if whole < n_rows:
        yield slice(whole, n_rows), matrix[None, whole:]


def scores(vectors: NDArray[Any], pieces: NDArray[Any]) -> NDArray[Any]:
    """Return ``(B, K, n)`` products of vectors ``(K, D)`` with each row of pieces ``(B, n, D)``."""
    return np.matmul(vectors, pieces.transpose(0, 2, 1))


def weighted_sums(weights: NDArray[Any], pieces: NDArray[Any]) -> NDArray[Any]:
    """Return sums ``(K, D)`` of all rows of pieces, weighted by ``(B, K, n)``."""
    return np.matmul(weights, pieces).sum(axis=0)


def times_transposed(vectors: NDArray[Any], matrix: NDArray[Any]) -> NDArray[Any]:
    """Return ``(K, N)`` products of vectors ``(K, D)`` with each row of a matrix ``(N, D)``.

    They are in the precision of the vectors, whatever that of the matrix.
    """
    if vectors.size * len(matrix) <= _SMALL:
        return vectors @ matrix.T.astype(vectors.dtype, copy=False)
    product = np.empty((len(vectors), len(matrix)), vectors.dtype)
    for rows, pieces in blocks(matrix, len(vectors)):
        of_block = scores(vectors, pieces.astype(vectors.dtype, copy=False))
        product[:, rows] = of_block.swapaxes(0, 1).reshape(len(vectors), -1)
    return product


def times(vectors: NDArray[Any], matrix: NDArray[Any]) -> Floats:
    """Return the product ``(K, D)`` of vectors ``(K, N)`` and a matrix ``(N, D)``.

    It is in the precision of the vectors, summed over blocks in float64.
    """
    if len(vectors) * matrix.size <= _SMALL:
        return (vectors @ matrix.astype(vectors.dtype, copy=False)).astype(np.float64, copy=False)
    product = np.zeros((len(vectors), matrix.shape[1]))
    for rows, pieces in blocks(matrix, len(vectors)):
        weights = vectors[:, rows].reshape(len(vectors), *pieces.shape[:2]).swapaxes(0, 1)
        wide = pieces.astype(vectors.dtype, copy=False)
        product += weighted_sums(np.ascontiguousarray(weights), wide)
    return product
