"""The search for neighbours against loops in float64, in cases that float32 cannot tell apart."""

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from crsbench.probes import neighbours
from crsbench.probes.neighbours import TrainRows


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def search(train, queries, *, count, rows=None):
    rows = np.arange(len(train)) if rows is None else rows
    blocks = TrainRows(train).blocks(queries)
    return np.concatenate([block.nearest(rows, count=count) for block in blocks])


def search_by_loop(train, queries, *, count, rows=None):
    """Sort all rows by float64 distance, then place, one query after another."""
    rows = range(len(train)) if rows is None else rows
    wide = train.astype(np.float64)
    return [
        sorted(rows, key=lambda row: (np.square(wide[row] - query).sum(), row))[:count]
        for query in queries.astype(np.float64)
    ]


def draw(rng, n, d):
    return rng.standard_normal((n, d)).astype(np.float32)


@pytest.mark.parametrize(("n", "d", "count"), [(300, 7, 5), (90, 150, 1), (40, 3, 20), (6, 2, 6)])
def test_the_nearest_are_those_of_a_loop_nearest_first(rng, n, d, count):
    train, queries = draw(rng, n, d), draw(rng, 25, d)
    found = search(train, queries, count=count)
    np.testing.assert_array_equal(found, search_by_loop(train, queries, count=count))


def test_the_nearest_are_those_of_scikit_learn(rng):
    train, queries = draw(rng, 1500, 40), draw(rng, 60, 40)
    oracle = NearestNeighbors(n_neighbors=5, algorithm="brute").fit(train.astype(np.float64))
    expected = oracle.kneighbors(queries.astype(np.float64), return_distance=False)
    np.testing.assert_array_equal(search(train, queries, count=5), expected)


def test_only_the_given_rows_are_searched(rng):
    train, queries = draw(rng, 200, 6), draw(rng, 20, 6)
    rows = np.sort(rng.permutation(200)[:60])
    found = search(train, queries, count=4, rows=rows)
    np.testing.assert_array_equal(found, search_by_loop(train, queries, count=4, rows=rows))


def test_some_queries_of_a_block_are_searched_alone(rng):
    train, queries, rows = draw(rng, 80, 4), draw(rng, 12, 4), np.arange(80)
    (block,) = TrainRows(train).blocks(queries)
    some = np.array([1, 5, 11])
    found = block.nearest(rows, count=3, queries=some)
    np.testing.assert_array_equal(found, block.nearest(rows, count=3)[some])


def test_equal_distances_are_ordered_by_place(rng):
    corners = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], np.float32)
    train = np.tile(corners, (5, 1))
    np.testing.assert_array_equal(search(train, np.zeros((2, 2), np.float32), count=6)[1], range(6))
    train = np.round(draw(rng, 400, 3))
    queries = np.round(draw(rng, 50, 3))
    found = search(train, queries, count=5)
    np.testing.assert_array_equal(found, search_by_loop(train, queries, count=5))


def test_copies_of_a_row_tie_whatever_stands_between_them(rng):
    distinct = draw(rng, 10, 30)
    train = distinct[rng.integers(10, size=300)]
    queries = np.concatenate([distinct, draw(rng, 10, 30)])
    found = search(train, queries, count=5)
    np.testing.assert_array_equal(found, search_by_loop(train, queries, count=5))


def test_a_collapsed_encoder_is_searched_too():
    train = np.zeros((20_000, 8), np.float32)
    found = search(train, np.zeros((300, 8), np.float32), count=5)
    np.testing.assert_array_equal(found, np.tile(range(5), (300, 1)))


def test_distances_that_float32_cannot_tell_apart_are_ordered_by_float64(rng):
    # Far from the origin the products cancel: all rows estimate to the same distance.
    far = np.float32(2.0**14)
    train = far + np.float32(2.0**-9) * rng.integers(-40, 40, size=(200, 5)).astype(np.float32)
    queries = train[:20] + np.float32(2.0**-9)
    estimates = (train.astype(np.float32) ** 2).sum(axis=1) - 2 * train @ queries[0]
    assert len(np.unique(estimates)) < 20
    found = search(train, queries, count=5)
    np.testing.assert_array_equal(found, search_by_loop(train, queries, count=5))


@pytest.mark.parametrize("size", [1e-30, 1e18, 1e25, 3e38])
def test_the_range_of_float32_is_no_limit(rng, size):
    shrunk = rng.uniform(-1, 1, size=(60, 4)) * np.tile([[1], [0.1], [0]], (20, 1))
    train = (shrunk * size).astype(np.float32)
    queries = (rng.uniform(-1, 1, size=(15, 4)) * size).astype(np.float32)
    found = search(train, queries, count=5)
    np.testing.assert_array_equal(found, search_by_loop(train, queries, count=5))


def test_one_row_far_out_and_one_query_far_out_spoil_nothing(rng):
    train, queries = draw(rng, 300, 20), draw(rng, 10, 20)
    train[7] *= 1e4
    queries[3] *= 1e6
    found = search(train, queries, count=5)
    np.testing.assert_array_equal(found, search_by_loop(train, queries, count=5))


@pytest.mark.parametrize("size", [1, 7, 200])
def test_the_size_of_a_block_changes_nothing(rng, size, monkeypatch):
    train, queries = np.round(draw(rng, 150, 12), 1), np.round(draw(rng, 40, 12), 1)
    whole = search(train, queries, count=5)
    monkeypatch.setattr(neighbours, "_ESTIMATES", size * len(train))
    monkeypatch.setattr(neighbours, "_DIFFERENCES", 12 * size)
    np.testing.assert_array_equal(search(train, queries, count=5), whole)


def test_few_rows_are_left_for_the_exact_distances(rng):
    """The bound is worth its name: else a search would be right, and take days."""
    train = TrainRows(draw(rng, 5000, 256))
    (block,) = train.blocks(draw(rng, 100, 256))
    place, _ = block._candidates(np.arange(5000), np.arange(100), 5)
    assert len(place) < 100 * 8


def test_fewer_rows_than_neighbours_are_refused(rng):
    with pytest.raises(ValueError, match="3 rows have no 5 nearest"):
        search(draw(rng, 3, 2), draw(rng, 4, 2), count=5)
