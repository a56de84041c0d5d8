"""The cache of perturbed images: lossless, checked, and never in the way."""

import numpy as np
import pytest

from crsbench.errors import DataError
from crsbench.perturbations import PERTURBATIONS, perturbed_images, pixels_sha256
from crsbench.perturbed_cache import PerturbedCache

SEVERITIES = {
    "blur": (1, 2, 4),
    "jpeg": (50, 25, 10),
    "contrast": (0.75, 0.50, 0.25),
    "rician": (0.05, 0.10, 0.20),
    "fov": (0.9, 0.8, 0.7),
}


def conditions(*, grey, height=30, width=41):
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = np.repeat(image[..., :1], 3, axis=2) if grey else image
    found = perturbed_images(
        image, dataset="d", sample="s", perturbations=PERTURBATIONS, severities=SEVERITIES
    )
    images = [pixels for *_, pixels in found]
    return [pixels_sha256(pixels) for pixels in images], images


@pytest.fixture
def cache(tmp_path):
    return PerturbedCache(tmp_path / "cache")


@pytest.mark.parametrize("grey", [True, False])
def test_images_come_back_to_the_last_bit(grey, cache):
    expected, images = conditions(grey=grey)
    assert cache.read(expected) is None
    cache.write(expected, images)
    found = cache.read(expected)
    assert len(found) == 15
    for stored, made in zip(found, images, strict=True):
        assert stored.flags.c_contiguous
        assert np.array_equal(stored, made)


def test_a_grey_image_takes_a_third_of_the_place(cache):
    sizes = []
    for grey in (True, False):
        expected, images = conditions(grey=grey, height=200, width=200)
        cache.write(expected, images)
        sizes.append(cache.path(expected).stat().st_size)
    assert sizes[0] < 0.4 * sizes[1]


def test_other_conditions_have_a_file_of_their_own(cache):
    expected, images = conditions(grey=False)
    cache.write(expected, images)
    assert cache.read(expected[:3]) is None
    assert cache.read(expected[::-1]) is None


def test_pixels_that_are_not_the_manifests_are_refused(cache):
    expected, images = conditions(grey=False)
    images[4] = images[4].copy()
    images[4][0, 0, 0] ^= 1
    cache.write(expected, images)
    with pytest.raises(DataError, match=r"npy\.zst: not the pixels .*; delete the file"):
        cache.read(expected)


def test_a_truncated_file_is_refused(cache):
    expected, images = conditions(grey=False)
    cache.write(expected, images)
    path = cache.path(expected)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="delete the file"):
        cache.read(expected)
