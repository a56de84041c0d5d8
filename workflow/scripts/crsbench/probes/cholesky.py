"""Positive definite systems in float32, for preconditioners."""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError
from scipy.linalg.lapack import spotrf, strtri

from crsbench.probes.base import Features, Floats
from crsbench.probes.thin import times, times_transposed


def add_to_diagonal(matrix: Features, number: float) -> None:
    """Add a number to the diagonal of a matrix ``(N, N)`` in place."""
    matrix.flat[:: len(matrix) + 1] += np.float32(number)


def check_factor(first_bad: int) -> None:
    """Raise a `LinAlgError` unless a factorisation, of any library, came to its end.

    Parameters
    ----------
    first_bad
        The order of the first leading minor that is not positive, counted from 1, or 0.
    """
    if first_bad:
        raise LinAlgError(f"{first_bad}-th leading minor is not positive definite")


def cholesky_factor(matrix: Features) -> Features:
    """Return the lower factor ``(N, N)``, in column order, of a matrix that is overwritten.

    What stands above the diagonal is not part of it.

    Raises
    ------
    LinAlgError
        If the matrix is not positive definite.
    """
    factor, first_bad = spotrf(matrix.T, lower=1, clean=0, overwrite_a=1)
    check_factor(first_bad)
    return factor


class InverseOfSum:
    """The inverse of a symmetric matrix ``(N, N)`` with a number added to its diagonal.

    It is applied as two products with the inverse of the Cholesky factor: unlike the inverse these
    stay positive when they are rounded, and unlike substitutions they are fast.

    Parameters
    ----------
    matrix
        Is overwritten.
    number
        Added to the diagonal.

    Raises
    ------
    LinAlgError
        If the sum is not positive definite.
    """

    def __init__(self, matrix: Features, number: float) -> None:
        add_to_diagonal(matrix, number)
        factor, first_bad = spotrf(matrix.T, lower=0, overwrite_a=1)
        check_factor(first_bad)
        # The upper factor in column order is the lower one in row order.
        self._inverse_factor = strtri(factor, lower=0, overwrite_c=1)[0].T

    def times(self, vectors: NDArray[np.floating]) -> Floats:
        """Return the product ``(K, N)`` with vectors ``(K, N)``."""
        half = times_transposed(vectors.astype(np.float32), self._inverse_factor)
        return times(half, self._inverse_factor)
