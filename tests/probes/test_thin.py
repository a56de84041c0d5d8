"""Products by pieces are the products."""

import numpy as np
import pytest

from crsbench.probes.thin import (
    blocks,
    scores,
    times,
    times_symmetric,
    times_transposed,
    weighted_sums,
)


@pytest.fixture(params=[(1, 1, 1), (5, 40, 7), (3, 1000, 768), (14, 77, 2560), (8, 2000, 33)])
def operands(request):
    n_vectors, n_rows, width = request.param
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((n_rows, width), dtype=np.float32)
    return rng.standard_normal((n_vectors, width), dtype=np.float32), matrix


def test_blocks_hold_each_row_once_and_in_order(operands):
    _, matrix = operands
    seen = [
        (rows, pieces.reshape(-1, matrix.shape[1]))
        for rows, pieces in blocks(matrix, 3, np.float32)
    ]
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in seen]), matrix)
    for rows, of_block in seen:
        np.testing.assert_array_equal(matrix[rows], of_block)


def test_blocks_are_no_copies(operands):
    _, matrix = operands
    assert all(np.shares_memory(pieces, matrix) for _, pieces in blocks(matrix, 3, np.float32))


def test_products_agree_with_float64(operands):
    vectors, matrix = operands
    wide, wide_matrix = vectors.astype(float), matrix.astype(float)
    expected = wide @ wide_matrix.T
    size = np.sqrt(matrix.shape[1])
    np.testing.assert_allclose(times_transposed(vectors, matrix), expected, atol=1e-5 * size)
    for given in (wide_matrix, matrix):  # the vectors' precision counts
        np.testing.assert_allclose(times_transposed(wide, given), expected, atol=1e-12 * size)


def test_sums_of_rows_agree_with_float64(operands):
    _, matrix = operands
    weights = np.random.default_rng(1).standard_normal((4, len(matrix)), dtype=np.float32)
    expected = weights.astype(float) @ matrix.astype(float)
    product = times(weights, matrix)
    assert product.dtype == np.float64
    np.testing.assert_allclose(product, expected, atol=1e-5 * np.sqrt(len(matrix)))
    product = times(weights.astype(float), matrix)
    np.testing.assert_allclose(product, expected, atol=1e-12 * np.sqrt(len(matrix)))


@pytest.mark.parametrize("n", [1, 40, 500])  # at once, and in pieces
def test_products_with_a_symmetric_matrix_agree_with_float64(n):
    rng = np.random.default_rng(2)
    half, vectors = rng.standard_normal((n, n)), rng.standard_normal((5, n))
    matrix = half + half.T
    expected = vectors @ matrix
    for precision, accuracy in ((np.float64, 1e-12), (np.float32, 1e-5)):
        product = times_symmetric(vectors.astype(precision), matrix.astype(precision))
        assert product.dtype == precision
        np.testing.assert_allclose(product, expected, atol=accuracy * n)


def test_scores_and_sums_of_one_block(operands):
    vectors, matrix = operands
    pieces = matrix[None]
    of_pieces = scores(vectors, pieces)
    np.testing.assert_allclose(of_pieces[0], vectors @ matrix.T, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(
        weighted_sums(of_pieces, pieces), (of_pieces[0] @ matrix), rtol=1e-4, atol=1e-2
    )
