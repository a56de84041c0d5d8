"""Products of a tall matrix with a few vectors, in pieces that BLAS takes as they are.

A product of few columns gains nothing from the repacking that makes large products fast. OpenBLAS
leaves it out of small ones, which was seen to make them two to five times as fast: up to a million
multiplications, and with a transposed matrix up to some 0.8 million and 1,200 numbers of a product.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from crsbench.probes.base import Floats

#: Multiplications of a piece, and numbers of its product with a transposed matrix.
_SMALL, _SMALL_PRODUCT = 700_000, 1_200
#: Bytes of a block of pieces: it stays in the cache between its two products.
_BLOCK = 2**21
_LEAST_ROWS = 16


def blocks(
    matrix: NDArray[Any], n_vectors: int, precision: DTypeLike
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield the rows of a matrix ``(N, D)`` by block, as a slice and as pieces ``(B, n, D)``.

    Parameters
    ----------
    matrix
        C-contiguous.
    n_vectors
        How many vectors it is to be multiplied with.
    precision
        Of the vectors; the pieces are not yet in it.
    """
    n_rows, width = matrix.shape
    most = min(_SMALL // (n_vectors * width), _SMALL_PRODUCT // n_vectors)
    piece = max(most // _LEAST_ROWS, 1) * _LEAST_ROWS
    step = piece * max(1, _BLOCK // (piece * width * np.dtype(precision).itemsize))
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
    if vectors.size * len(matrix) <= _SMALL and len(vectors) * len(matrix) <= _SMALL_PRODUCT:
        return vectors @ matrix.T.astype(vectors.dtype, copy=False)
    product = np.empty((len(vectors), len(matrix)), vectors.dtype)
    for rows, pieces in blocks(matrix, len(vectors), vectors.dtype):
        of_block = scores(vectors, pieces.astype(vectors.dtype, copy=False))
        product[:, rows] = of_block.swapaxes(0, 1).reshape(len(vectors), -1)
    return product


def times_symmetric(vectors: NDArray[Any], matrix: NDArray[Any]) -> NDArray[Any]:
    """Return the product ``(K, N)`` of vectors ``(K, N)`` and a symmetric matrix ``(N, N)``.

    Both are of one precision, and so is the product.
    """
    small = vectors.size * len(matrix) <= _SMALL
    return vectors @ matrix if small else times_transposed(vectors, matrix)


def times(vectors: NDArray[Any], matrix: NDArray[Any]) -> Floats:
    """Return the product ``(K, D)`` of vectors ``(K, N)`` and a matrix ``(N, D)``.

    It is in the precision of the vectors, summed over blocks in float64.
    """
    if len(vectors) * matrix.size <= _SMALL:
        return (vectors @ matrix.astype(vectors.dtype, copy=False)).astype(np.float64, copy=False)
    product = np.zeros((len(vectors), matrix.shape[1]))
    for rows, pieces in blocks(matrix, len(vectors), vectors.dtype):
        weights = vectors[:, rows].reshape(len(vectors), *pieces.shape[:2]).swapaxes(0, 1)
        wide = pieces.astype(vectors.dtype, copy=False)
        product += weighted_sums(np.ascontiguousarray(weights), wide)
    return product
