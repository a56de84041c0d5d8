r"""The nearest training rows of a query: exact, in bounded memory, ties by place.

**Law.** Distances are Euclidean, computed in float64 from the float32 rows, column by column as
they stand. Of equal distances the row that stands first in the train split is nearer. Hence the
result depends neither on the size of a block nor on the threads of a matrix product.

**How.** For rows x and a block of queries q, one float32 product estimates all

.. math:: \lVert x - q \rVert^2 - \lVert q \rVert^2 = \lVert x \rVert^2 - 2\, x \cdot q .

Sets of training rows that are searched for the same queries share it. With D columns and
u = 2^-24, a float32 sum of products, in any order, is within :math:`\gamma_D \lVert x \rVert
\lVert q \rVert` of the true one, :math:`\gamma_D = D u / (1 - D u)` (Higham 2002, section 3.1). So
an estimate is off by less than

.. math:: 2 u \lVert x \rVert^2 + 2 (\gamma_D + 2 u) \lVert x \rVert \lVert q \rVert ,

its *slack*. Rows whose estimate less slack is above the estimates plus slack of `count` other rows
cannot be among the `count` nearest. The few that are left are ranked by their float64 distances.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from crsbench.probes.base import Features, Floats

Places = NDArray[np.int64]

#: Estimates of a block of queries, and values of the exact differences that are made at a time.
_ESTIMATES, _DIFFERENCES = 2**26, 2**22
_LARGEST_BLOCK = 4096
#: Groups of rows per neighbour that is looked for: more make a tighter bound and more passes.
_GROUPS = 16
_UNIT = 2.0**-24
#: Half the unit of float64, times the roundings of a difference, a square and a sum.
_UNIT_64 = 2.0**-51
#: Where products could leave the range of float32, estimates say nothing and slack is infinite.
_IN_RANGE = 1e38


class TrainRows:
    """The train split of a cell, ready to be searched.

    Parameters
    ----------
    features
        ``(N, D)`` float32, finite.
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        n_columns = features.shape[1]
        self.squares = np.concatenate([_squares(block) for block in _blocks(features)])
        norms = np.sqrt(self.squares)
        gamma = n_columns * _UNIT / (1 - n_columns * _UNIT)
        rounding = 2 * _UNIT + n_columns * _UNIT_64
        # One percent covers the rounding of the slack itself, the last term float32's underflow.
        fixed = 1.01 * rounding * self.squares + n_columns * 1e-37
        self.fixed_slack = _narrowed(fixed)
        self.slack_per_norm = _narrowed(1.01 * 2 * (gamma + 2 * _UNIT) * norms)
        self.kinds, self.most_copies = _kinds(features)

    def blocks(self, queries: Features) -> Iterator["Block"]:
        """Yield the queries ``(M, D)`` in blocks, in their order."""
        size = int(np.clip(_ESTIMATES // len(self.features), 1, _LARGEST_BLOCK))
        for first in range(0, len(queries), size):
            yield Block(self, queries[first : first + size])


class Block:
    """Some queries, with the estimates of their distances to all rows of the train split.

    Parameters
    ----------
    train
        The train split.
    queries
        ``(B, D)`` float32, finite.
    """

    def __init__(self, train: TrainRows, queries: Features) -> None:
        self._train = train
        self._queries = queries
        squares = _squares(queries)
        norms = np.sqrt(squares)
        with np.errstate(over="ignore", invalid="ignore"):
            self._estimates = train.features @ (-2 * queries).T
            self._estimates += _narrowed(train.squares)[:, None]
        largest = float(train.squares.max(initial=0.0))
        safe = largest + 2 * np.sqrt(largest) * norms < _IN_RANGE
        self._norms = _narrowed(np.where(safe, norms, np.inf))
        self._exact_slack = 2 * train.features.shape[1] * _UNIT_64 * squares

    def __len__(self) -> int:
        return len(self._queries)

    def nearest(self, rows: Places, *, count: int, queries: Places | None = None) -> Places:
        """Return the `count` nearest of some training rows, nearest first.

        Parameters
        ----------
        rows
            Places in the train split, ascending, at least `count`.
        queries
            Places in the block; all of it if None.

        Returns
        -------
        ndarray
            ``(B, count)`` places in the train split.
        """
        if len(rows) < count:
            raise ValueError(f"{len(rows)} rows have no {count} nearest")
        asked = np.arange(len(self)) if queries is None else queries
        place, query = self._candidates(self._without_copies(rows, count), asked, count)
        distances = self._distances(place, asked[query])
        order = np.lexsort((place, distances, query))
        starts = np.searchsorted(query[order], np.arange(len(asked)))
        return place[order][starts[:, None] + np.arange(count)]

    def _without_copies(self, rows: Places, count: int) -> Places:
        """Leave out rows of which `count` copies stand earlier: those are nearer."""
        if self._train.most_copies <= count:
            return rows
        kinds = self._train.kinds[rows]
        order = np.argsort(kinds, kind="stable")
        nth_copy = np.arange(len(rows)) - np.searchsorted(kinds[order], kinds[order])
        return rows[np.sort(order[nth_copy < count])]

    def _candidates(self, rows: Places, asked: Places, count: int) -> tuple[Places, Places]:
        """Return pairs of row and query, the `count` nearest rows of each query among them."""
        size = max(1, len(rows) // (_GROUPS * count))
        groups = [rows[first : first + size] for first in range(0, len(rows), size)]
        lowest, highest = np.empty((2, len(groups), len(asked)), np.float32)
        with np.errstate(invalid="ignore"):
            for group, low, high in zip(groups, lowest, highest, strict=True):
                estimates, slack = self._bounds(group, asked)
                np.min(estimates - slack, axis=0, out=low)
                np.min(estimates + slack, axis=0, out=high)
            # The lowest upper bounds of `count` groups belong to `count` rows.
            limit = np.partition(highest, count - 1, axis=0)[count - 1] + self._exact_slack[asked]
            pairs = []
            # "Not above" and not "at most": an estimate that is NaN leaves its row in.
            for group, low in zip(groups, lowest, strict=True):
                open_queries = np.flatnonzero(~(low > limit))
                estimates, slack = self._bounds(group, asked[open_queries])
                row, query = np.nonzero(~(estimates - slack > limit[open_queries]))
                pairs.append((group[row], open_queries[query]))
        place, query = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        return place, query

    def _bounds(self, group: Places, asked: Places) -> tuple[Features, Features]:
        """Return the estimates of some rows and queries, and their slack."""
        train = self._train
        slack = train.slack_per_norm[group, None] * self._norms[asked]
        slack += train.fixed_slack[group, None]
        every = len(asked) == len(self)
        return self._estimates[group] if every else self._estimates[np.ix_(group, asked)], slack

    def _distances(self, place: Places, query: Places) -> Floats:
        """Return the squared distances of pairs, in float64."""
        distances = np.empty(len(place))
        step = max(1, _DIFFERENCES // self._queries.shape[1])
        for first in range(0, len(place), step):
            some = slice(first, first + step)
            rows = self._train.features[place[some]].astype(np.float64)
            rows -= self._queries[query[some]]
            distances[some] = np.square(rows, out=rows).sum(axis=1)
        return distances


def _squares(features: Features) -> Floats:
    """Return the squared norms of rows, in float64."""
    return np.square(features.astype(np.float64)).sum(axis=1)


def _narrowed(values: Floats) -> Features:
    """Return values in float32, infinite beyond its range."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _blocks(features: Features) -> Iterator[Features]:
    size = max(1, _DIFFERENCES // features.shape[1])
    for first in range(0, len(features), size):
        yield features[first : first + size]


def _kinds(features: Features) -> tuple[Places, int]:
    """Return a number for each row that its copies share, and the most copies that one has."""
    numbers: dict[bytes, int] = {}
    digests = (hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in features)
    kinds = np.array([numbers.setdefault(digest, len(numbers)) for digest in digests], np.int64)
    return kinds, int(np.bincount(kinds, minlength=1).max())
