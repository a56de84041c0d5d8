"""Images that look alike: a perceptual hash of each, and the pairs whose hashes hardly differ.

The hash says of the 16 x 16 lowest frequencies of the grey picture, 64 x 64 px, which are above
their median: 256 bits (`imagehash.phash`). Re-encoding and shrinking flip a few of them. Two
unlike radiographs differ in far more, but not in many more than a hash of 64 bits can tell: hence
256 (protocol, section 11, has the figures).
"""

from collections.abc import Iterator

import imagehash
import numpy as np
from numpy.typing import NDArray
from PIL import Image

_SIDE = 16
_THUMBNAIL_PX = 64
# Large pictures are first averaged down to three times that: a tenth of the time, the same bits but
# a few.
_REDUCING_GAP = 3.0
# Below this standard deviation, in grey levels, rounding decides the bits: nothing can be told.
_FLATTEST = 2.0


def perceptual_hash(image: Image.Image) -> str | None:
    """Return the 256 bits of a picture as 64 hexadecimal digits; None for one of a single shade."""
    size = (_THUMBNAIL_PX, _THUMBNAIL_PX)
    thumbnail = image.convert("L").resize(
        size, Image.Resampling.LANCZOS, reducing_gap=_REDUCING_GAP
    )
    if np.asarray(thumbnail).std() < _FLATTEST:
        return None
    return str(imagehash.phash(thumbnail, hash_size=_SIDE))


def similar_pairs(
    hashes: NDArray[np.uint8], *, max_distance: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the rows whose hashes differ in at most so many bits.

    Of rows with the same hash the first stands for all: it is paired with each of them, and it
    alone with others. So joining the pairs gives the same clusters as all pairs would.

    Parameters
    ----------
    hashes : ndarray of uint8, (N, 32)
    max_distance
        From 0 on; the time grows with it, since fewer bits are left to look a pair up by.

    Returns
    -------
    pairs : ndarray of int64, (M, 2)
        Rows, the smaller first; sorted.
    distances : ndarray of int64, (M,)
        Bits in which they differ.
    """
    _, first, place = np.unique(hashes, axis=0, return_index=True, return_inverse=True)
    representative = first[place]
    rows = np.arange(len(hashes))
    is_copy = representative != rows
    copies = np.column_stack([representative[is_copy], rows[is_copy]])
    distinct = np.sort(first)
    found, distances = _distinct_pairs(hashes[distinct], max_distance)
    pairs = np.vstack([copies, distinct[found]])
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    return pairs[order], np.concatenate([np.zeros(len(copies), np.int64), distances])[order]


def _distinct_pairs(
    hashes: NDArray[np.uint8], max_distance: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the pairs by bands: of d + 1 bands one is the same in hashes that differ in d bits."""
    words = np.ascontiguousarray(hashes).view(np.uint64)
    bits = np.unpackbits(hashes, axis=1)
    n_bands = max_distance + 1
    pairs, distances = [np.empty((0, 2), np.int64)], [np.empty(0, np.int64)]
    for band in range(n_bands):
        # Every n-th bit, so that each band has its share of telling, low frequencies.
        for left, right in _pairs_with_equal_keys(_keys(bits[:, band::n_bands])):
            distance = np.bitwise_count(words[left] ^ words[right]).sum(axis=1, dtype=np.int64)
            is_near = distance <= max_distance
            near = np.column_stack([left[is_near], right[is_near]])
            pairs.append(np.sort(near, axis=1))
            distances.append(distance[is_near])
    unique, position = np.unique(np.vstack(pairs), axis=0, return_index=True)
    return unique, np.concatenate(distances)[position]


def _keys(bits: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the first 64 bits of each row as a number; equal rows have equal numbers."""
    packed = np.packbits(bits[:, :64], axis=1)
    padded = np.zeros((len(bits), 8), np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64)[:, 0]


def _pairs_with_equal_keys(
    keys: NDArray[np.uint64],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield all pairs of positions with equal keys, as arrays of left and right ones."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    active = np.arange(len(keys))
    for shift in range(1, len(keys)):
        active = active[active + shift < len(keys)]
        active = active[ordered[active] == ordered[active + shift]]
        if not len(active):
            return
        yield order[active], order[active + shift]
