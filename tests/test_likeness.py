"""Perceptual hashes: copies are near, other pictures far, and every near pair is found."""

import io

import numpy as np
import pytest
from PIL import Image, ImageFilter

from crsbench.likeness import perceptual_hash, similar_pairs


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def picture(seed: int, size: tuple[int, int] = (200, 160)) -> Image.Image:
    """Draw smooth blobs, as detailed as a radiograph about."""
    noise = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def bits(image: Image.Image) -> np.ndarray:
    digits = perceptual_hash(image)
    assert digits is not None
    return np.unpackbits(np.frombuffer(bytes.fromhex(digits), np.uint8))


def distance(first: Image.Image, second: Image.Image) -> int:
    return int((bits(first) != bits(second)).sum())


def encoded(image: Image.Image, **options) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return Image.open(buffer).convert("RGB")


COPIES = {
    "encoded again": lambda image: encoded(image, quality=75),
    "smaller": lambda image: image.resize((100, 80), Image.Resampling.LANCZOS),
    "other proportions": lambda image: image.resize((150, 150), Image.Resampling.LANCZOS),
    "much larger": lambda image: image.resize((2000, 1600), Image.Resampling.BICUBIC),
    "grey": lambda image: image.convert("L"),
    "darker": lambda image: Image.eval(image, lambda level: int(0.8 * level)),
    "soft": lambda image: image.filter(ImageFilter.GaussianBlur(0.7)),
}


@pytest.mark.parametrize("change", COPIES)
@pytest.mark.parametrize("seed", range(3))
def test_a_changed_copy_is_near(change, seed):
    original = picture(seed)
    assert distance(original, COPIES[change](original)) <= 12


def test_other_pictures_are_far():
    hashes = np.array([bits(picture(seed)) for seed in range(20)]).astype(int)
    differing = (hashes[:, None] != hashes[None]).sum(axis=2)
    assert differing[np.triu_indices(20, 1)].min() > 70


def test_the_bits_are_the_low_frequencies_above_their_median():
    thumbnail = picture(0, size=(64, 64)).convert("L")
    position = np.arange(64)
    cosines = np.cos(np.pi / 64 * np.outer(np.arange(16), position + 0.5))
    low = cosines @ np.asarray(thumbnail, dtype=float) @ cosines.T
    np.testing.assert_array_equal(bits(thumbnail), (low > np.median(low)).ravel())


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_picture_of_one_shade_has_no_hash(mode):
    assert perceptual_hash(Image.new(mode, (30, 20))) is None
    noise = np.random.default_rng(0).integers(100, 103, (64, 64), dtype=np.uint8)
    assert perceptual_hash(Image.fromarray(noise)) is None


# --- Pairs ----------------------------------------------------------------------------------------


def brute_force(hashes: np.ndarray, max_distance: int) -> dict[tuple[int, int], int]:
    table = np.unpackbits(hashes, axis=1).astype(int)
    differing = (table[:, None] != table[None]).sum(axis=2)
    left, right = np.nonzero(np.triu(differing <= max_distance, 1))
    return {
        (i, j): int(differing[i, j]) for i, j in zip(left.tolist(), right.tolist(), strict=True)
    }


def found(hashes: np.ndarray, max_distance: int) -> dict[tuple[int, int], int]:
    pairs, distances = similar_pairs(hashes, max_distance=max_distance)
    assert pairs.tolist() == sorted(pairs.tolist())
    return {(i, j): d for (i, j), d in zip(pairs.tolist(), distances.tolist(), strict=True)}


def families(random: np.random.Generator, *, n_families: int, size: int, spread: int) -> np.ndarray:
    """Return hashes of which those of a family differ from its head in up to `spread` bits."""
    heads = random.integers(0, 2, (n_families, 256), dtype=np.uint8).repeat(size, axis=0)
    for row in heads:
        row[random.choice(256, random.integers(0, spread + 1), replace=False)] ^= 1
    return np.packbits(random.permutation(heads), axis=1)


@pytest.mark.parametrize("max_distance", [1, 2, 3, 7, 10, 24])
def test_exactly_the_near_pairs_are_found(random, max_distance):
    hashes = np.unique(families(random, n_families=40, size=8, spread=14), axis=0)
    random.shuffle(hashes)
    expected = brute_force(hashes, max_distance)
    assert found(hashes, max_distance) == expected
    assert len(expected) > 0


def test_pairs_are_found_among_hashes_that_agree_in_most_bits(random):
    table = np.zeros((200, 256), np.uint8)
    table[:, 5:13] = random.integers(0, 2, (200, 8))
    table[:, 200:206] = random.integers(0, 2, (200, 6))
    hashes = np.unique(np.packbits(table, axis=1), axis=0)
    assert found(hashes, 4) == brute_force(hashes, 4)


def test_the_limit_belongs_to_the_near_ones(random):
    head = random.integers(0, 2, 256, dtype=np.uint8)
    table = np.array([head, head, head])
    table[1, random.choice(256, 10, replace=False)] ^= 1
    table[2, random.choice(256, 11, replace=False)] ^= 1
    pairs = found(np.packbits(table, axis=1), 10)
    assert pairs[0, 1] == 10
    assert (0, 2) not in pairs


def test_the_first_of_equal_hashes_stands_for_all():
    table = np.zeros((5, 256), np.uint8)
    table[[1, 4], 3] = 1  # rows 1 and 4 are equal, one bit from rows 0, 2, 3
    hashes = np.packbits(table, axis=1)
    assert found(hashes, 1) == {(0, 1): 1, (0, 2): 0, (0, 3): 0, (1, 4): 0}
    assert found(hashes, 0) == {(0, 2): 0, (0, 3): 0, (1, 4): 0}


@pytest.mark.parametrize("n_rows", [0, 1])
def test_there_is_no_pair_without_two_images(n_rows):
    assert found(np.zeros((n_rows, 32), np.uint8), 10) == {}
