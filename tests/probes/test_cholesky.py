"""The inverse of a system is its inverse, and what has none is an error."""

import numpy as np
import pytest
from scipy.linalg import LinAlgError

from crsbench.probes.cholesky import InverseOfSum, add_to_diagonal, cholesky_factor


@pytest.fixture(params=[1, 3, 60, 200])
def products(request):
    rows = np.random.default_rng(0).standard_normal((request.param, 250), dtype=np.float32)
    return rows @ rows.T


def test_the_inverse_of_the_sum_agrees_with_float64(products):
    n = len(products)
    vectors = np.random.default_rng(1).standard_normal((3, n))
    expected = vectors @ np.linalg.inv(products.astype(float) + 2 * np.eye(n))
    found = InverseOfSum(products.copy(), 2.0).times(vectors)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def test_the_inverse_stays_positive_where_float32_runs_out():
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.standard_normal((80, 80)))[0]
    spectrum = np.logspace(0, -6.5, 80)
    matrix = (rotation * spectrum) @ rotation.T
    inverse = InverseOfSum(matrix.astype(np.float32), 1e-6)
    for vector in rotation.T[:, None]:
        assert np.sum(vector * inverse.times(vector)) > 0


def test_the_factor_reproduces_the_matrix(products):
    add_to_diagonal(products, 1.0)
    expected = products.astype(float)
    factor = np.tril(cholesky_factor(products)).astype(float)
    np.testing.assert_allclose(factor @ factor.T, expected, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("make", [cholesky_factor, lambda matrix: InverseOfSum(matrix, 0.0)])
def test_what_is_not_positive_definite_is_an_error(make):
    matrix = np.diag(np.array([1, 1, -1], dtype=np.float32))
    with pytest.raises(LinAlgError, match="3-th leading minor"):
        make(matrix)
