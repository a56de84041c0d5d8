"""Five perturbations of test images: the same bytes in any order, process and machine.

The law: one perturbed image depends on the canonical image (RGB uint8, H x W x 3), the
perturbation, its strength and a seed, and on nothing else. The seed is 64 bits of the SHA-256
of dataset, sample, perturbation and severity. Arithmetic is in float64 on grey levels 0..255
(255 is full range) and ends in one rounding: half to even (`numpy.rint`), clipped to 0..255.
Noise is computed in float32 first, and again in float64 wherever that could round otherwise.
Protocol, section 3; what it leaves open is marked [choice].

Grey images. An image whose three channels are equal everywhere is one measurement: it is
perturbed as one plane, so it stays grey and its noise is shared by the channels [choice].
In a colour image each channel is a measurement of its own.

blur
    Gaussian of the given sigma (px at a shorter side of 224 px, scaled with it), sampled at
    whole pixels, cut at 4 sigma, radius int(4 sigma + 0.5), and renormalised [choice]; edges
    mirrored with the edge pixel repeated, scipy's "reflect" [choice].
jpeg
    Encoded and decoded by Pillow's libjpeg at the given quality: baseline, chroma 4:2:0, the
    library's standard tables [choice]. The bytes depend on the libjpeg build.
contrast
    mean + factor (x - mean), with one mean over all pixels and channels [choice].
rician
    sqrt((x + n_r)^2 + n_i^2), n ~ N(0, sigma^2), sigma in units of full range. A fresh pair
    for every pixel and channel of the canonical image, whatever its size [choice].
fov
    The central `fraction` of each side, enlarged to the old size: output pixel i looks at
    c + (i - c) fraction, c = (n - 1)/2, linearly between its two neighbours [choice]. The
    box is not rounded to whole pixels, so the view stays centred.

Exact sums. Blur and field of view are R X C' with banded matrices R and C. Their weights are
whole multiples of 2^-22 that sum to 1 in each row, so that every partial sum needs at most
8 + 22 + 22 = 52 bits and is exact in float64. Hence BLAS, a plain loop, any order of addition,
fused multiply-add and any number of threads give the same bytes. Each weight errs by at most
2^-23 (the middle one takes up the rest), the result by a hundredth of a grey level at worst.

Noise. The stream is raw 64-bit words of PCG64(seed), which numpy promises to keep (it does not
promise that for `standard_normal`). Each word gives four 16-bit numbers k, lowest bits first:
n_r, n_i of one value, n_r, n_i of the next, in the order of the array. k stands for the normal
quantile of (k + 1/2)/65536, rounded to 2^-20 so that no platform's last bits matter. This
normal is cut at 4.33 standard deviations and its variance is 0.99998.
"""

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import PIL
import scipy
from PIL import Image, features
from scipy.special import ndtri

from crsbench.config import PERTURBATIONS
from crsbench.digests import digest
from crsbench.errors import ConfigError, DataError

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.intp]

#: Lengths are given for an image whose shorter side has this many pixels.
REFERENCE_SIDE_PX = 224

#: Strengths that make sense: (lowest, highest, what it is), both ends allowed.
_STRENGTHS = {
    "blur": (1e-3, REFERENCE_SIDE_PX, "sigma in px at a shorter side of 224 px"),
    "jpeg": (1, 100, "whole quality"),
    "contrast": (0, 1, "factor"),
    "rician": (0, 1, "sigma in units of full range"),
    "fov": (1e-3, 1, "fraction of each side"),
}
_TRUNCATE_SIGMA = 4.0
_WEIGHT_BITS = 22
# Rows of one dense block of a banded matrix, on sides up to 512 px and above: fastest of 16 to 96.
_OUTPUTS_PER_BLOCK = (16, 32)
_VALUES_BETWEEN = 80_000  # of a first product at a time: few calls of BLAS, all in the cache
_VALUES_PER_CHUNK = 65_536  # noise buffers stay in the cache: fastest of 8,192 to 65,536
# Where float32 does not decide how a noisy level is rounded. Up to level 256 the noise is below
# 512, and all roundings up to the root move the result by less than 1,400 x 2^-24 < 2^-13.
_NEAR_A_TIE = 2**-12


def perturb(image: Pixels, *, perturbation: str, strength: float, seed: int) -> Pixels:
    """Return one perturbed copy of an image.

    Parameters
    ----------
    image
        RGB uint8 of shape (H, W, 3), in any memory layout.
    perturbation
        One of `PERTURBATIONS`.
    strength
        Blur: sigma in px at a shorter side of 224 px. JPEG: quality. Contrast: factor. Rician:
        sigma in units of full range. Field of view: fraction of each side.
    seed
        64-bit seed from `perturbation_seed`; only Rician noise uses it.

    Returns
    -------
    Pixels
        uint8 of shape (H, W, 3), contiguous and writable.

    Raises
    ------
    DataError
        When `image` is not RGB uint8.
    ConfigError
        When the perturbation is unknown or its strength out of range.
    """
    _check_strength(perturbation, strength)
    return _as_rgb(_perturbed(_Picture(image), perturbation, strength, seed))


def perturbation_seed(dataset: str, sample: str, perturbation: str, severity: int) -> int:
    """Return the 64-bit seed of one perturbed image: SHA-256 of exactly these four."""
    identity = digest(str(dataset), str(sample), str(perturbation), int(severity))
    return int(identity[:16], 16)


def perturbed_images(
    image: Pixels,
    *,
    dataset: str,
    sample: str,
    perturbations: Sequence[str],
    severities: Mapping[str, Sequence[float]],
) -> Iterator[tuple[str, int, int, Pixels]]:
    """Yield (perturbation, severity, seed, perturbed image) of one image.

    Parameters
    ----------
    image
        RGB uint8 of shape (H, W, 3).
    dataset, sample
        Identity of the image, from which the seeds follow.
    perturbations
        Names out of `PERTURBATIONS`, in the order to yield.
    severities
        Strengths of each perturbation; the first is severity 1.
    """
    picture = _Picture(image)
    for perturbation in perturbations:
        for severity, strength in enumerate(severities[perturbation], start=1):
            _check_strength(perturbation, strength)
            seed = perturbation_seed(dataset, sample, perturbation, severity)
            perturbed = _perturbed(picture, perturbation, strength, seed)
            yield perturbation, severity, seed, _as_rgb(perturbed)


def pixels_sha256(image: Pixels) -> str:
    """Return the SHA-256 of an RGB image's shape and bytes (hexadecimal)."""
    _check_image(image)
    sha = hashlib.sha256("{}x{}x{}:".format(*image.shape).encode())
    sha.update(np.ascontiguousarray(image).data)
    return sha.hexdigest()


def library_versions() -> str:
    """Return the versions of everything that decides a perturbed image's bytes."""
    turbo = features.version_feature("libjpeg_turbo")
    libjpeg = f"libjpeg-turbo {turbo}" if turbo else f"libjpeg {features.version_codec('jpg')}"
    return f"numpy {np.__version__}, scipy {scipy.__version__}, Pillow {PIL.__version__}, {libjpeg}"


def _check_image(image: Pixels) -> None:
    if not isinstance(image, np.ndarray):
        raise DataError(f"image: got {type(image).__name__}, expected a uint8 array (H, W, 3)")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
        raise DataError(
            f"image: got {image.dtype} of shape {image.shape}, expected RGB uint8 (H, W, 3) "
            "with at least one pixel; make it with images.canonical_image"
        )


def _check_strength(perturbation: str, strength: float) -> None:
    if perturbation not in _STRENGTHS:
        allowed = ", ".join(PERTURBATIONS)
        raise ConfigError(f"perturbation '{perturbation}' is unknown; expected one of {allowed}")
    lowest, highest, meaning = _STRENGTHS[perturbation]
    whole = perturbation != "jpeg" or float(strength).is_integer()
    if not (lowest <= strength <= highest and whole):
        raise ConfigError(
            f"severities, {perturbation}: got {strength}, "
            f"expected a {meaning} from {lowest:g} to {highest:g}"
        )


class _Picture:
    """What an image measures, and what several of its perturbations need.

    Parameters
    ----------
    image
        RGB uint8 of shape (H, W, 3).
    """

    def __init__(self, image: Pixels) -> None:
        _check_image(image)
        red, green, blue = (image[..., channel] for channel in range(3))
        is_grey = np.array_equal(red, green) and np.array_equal(red, blue)
        self.planes: Pixels = np.ascontiguousarray(image[..., :1] if is_grey else image)

    @cached_property
    def levels(self) -> Floats:
        """The planes as float64, (H, 1 or 3, W): a row of every plane, then the next row."""
        return np.ascontiguousarray(self.planes.transpose(0, 2, 1), dtype=np.float64)

    @cached_property
    def image(self) -> Image.Image:
        """The planes as Pillow's picture.

        A grey RGB image has constant chroma, so its luma alone gives the same JPEG pixels sooner.
        """
        return Image.fromarray(self.planes if self.planes.shape[2] == 3 else self.planes[..., 0])

    @cached_property
    def mean(self) -> float:
        """Mean over all pixels and channels."""
        return int(self.planes.sum(dtype=np.int64)) / self.planes.size


def _as_rgb(planes: Pixels) -> Pixels:
    if planes.shape[2] == 3:
        return planes
    rgb = np.empty((*planes.shape[:2], 3), dtype=np.uint8)
    for channel in range(3):  # plane by plane: half the time of `repeat`
        rgb[..., channel] = planes[..., 0]
    return rgb


def _perturbed(picture: _Picture, perturbation: str, strength: float, seed: int) -> Pixels:
    """Return the perturbed planes: (H, W, 1) when the image is grey, else (H, W, 3)."""
    if perturbation == "rician":
        return _add_rician_noise(picture, strength, seed)
    return _SEEDLESS[perturbation](picture, strength)


def _compress_as_jpeg(picture: _Picture, quality: float) -> Pixels:
    buffer = io.BytesIO()
    picture.image.save(buffer, "JPEG", quality=int(quality), subsampling="4:2:0")
    with Image.open(buffer, formats=["JPEG"]) as decoded:
        return np.array(decoded).reshape(picture.planes.shape)


def _lower_contrast(picture: _Picture, factor: float) -> Pixels:
    levels = picture.mean + factor * (np.arange(256) - picture.mean)
    table = np.clip(np.rint(levels), 0, 255).astype(np.uint8)
    mapped = bytearray(picture.planes).translate(table.tobytes())
    return np.frombuffer(mapped, dtype=np.uint8).reshape(picture.planes.shape)


def _add_rician_noise(picture: _Picture, sigma: float, seed: int) -> Pixels:
    """Return the noisy planes: float32 first, and float64 where that could round otherwise."""
    values, deviation = picture.planes.reshape(-1), 255 * sigma
    words, narrow = np.random.PCG64(seed), (_normals() * deviation).astype(np.float32)
    noisy = np.empty_like(values)
    for start in range(0, values.size, _VALUES_PER_CHUNK):
        chunk = slice(start, start + _VALUES_PER_CHUNK)
        levels, rounded = values[chunk], noisy[chunk]
        pairs = _sixteen_bit_pairs(words, levels.size)
        unsure = _round_noisy_levels(levels, pairs, narrow, out=rounded)
        noise = _normals()[pairs[unsure]] * deviation
        exact = np.sqrt((levels[unsure] + noise[:, 0]) ** 2 + noise[:, 1] ** 2)
        rounded[unsure] = np.rint(np.minimum(exact, 255))
    return noisy.reshape(picture.planes.shape)


def _round_noisy_levels(
    levels: Pixels, pairs: npt.NDArray[np.uint16], normals: npt.NDArray[np.float32], *, out: Pixels
) -> Integers:
    """Round noisy levels (n,), computed in float32; return where they lie too near a tie."""
    noisy = np.take(normals, pairs[:, 0], mode="wrap")  # no index is out of range: the fastest mode
    other = np.take(normals, pairs[:, 1], mode="wrap")
    noisy += levels
    noisy *= noisy
    other *= other
    noisy += other
    np.sqrt(noisy, out=noisy)
    np.minimum(noisy, 255, out=noisy)
    np.rint(noisy, out=other)
    np.copyto(out, other, casting="unsafe")
    noisy -= other
    return np.flatnonzero(np.abs(noisy, out=noisy) > 0.5 - _NEAR_A_TIE)


def _sixteen_bit_pairs(words: np.random.PCG64, n_pairs: int) -> npt.NDArray[np.uint16]:
    """Return the next pairs (n_pairs, 2) of 16-bit numbers; two pairs come from one word."""
    raw = np.asarray(words.random_raw((n_pairs + 1) // 2), dtype="<u8")
    return raw.view("<u2").reshape(-1, 2)[:n_pairs]


@lru_cache(maxsize=1)
def _normals() -> Floats:
    """Return the standard normal of each 16-bit number."""
    quantiles = ndtri((np.arange(65_536) + 0.5) / 65_536)
    return np.rint(quantiles * 2**20) / 2**20


def _blur(picture: _Picture, sigma_px: float) -> Pixels:
    height, width, _ = picture.planes.shape
    sigma = sigma_px * min(height, width) / REFERENCE_SIDE_PX
    return _multiply(_blur_blocks(height, sigma), picture.levels, _blur_blocks(width, sigma))


def _narrow_field_of_view(picture: _Picture, fraction: float) -> Pixels:
    height, width, _ = picture.planes.shape
    return _multiply(_zoom_blocks(height, fraction), picture.levels, _zoom_blocks(width, fraction))


_SEEDLESS: dict[str, Callable[[_Picture, float], Pixels]] = {
    "blur": _blur,
    "jpeg": _compress_as_jpeg,
    "contrast": _lower_contrast,
    "fov": _narrow_field_of_view,
}


class _Block(NamedTuple):
    """A dense block of a banded matrix: outputs = weights @ inputs.

    Its transpose is kept beside it, row by row: BLAS takes half as long over it as over a view.
    """

    outputs: slice
    inputs: slice
    weights: Floats
    transposed: Floats


def _multiply(rows: Sequence[_Block], levels: Floats, columns: Sequence[_Block]) -> Pixels:
    """Return R X C' of every plane of `levels` (H, 1 or 3, W), exact before the one rounding.

    A few blocks of output rows at a time go through both products, so that what lies between
    them stays in the cache. Convex weights cannot leave 0..255: nothing is clipped.
    """
    height, n_planes, width = levels.shape
    product = np.empty((height, width, n_planes), dtype=np.uint8)
    side_by_side = levels.reshape(height, n_planes * width)
    n_blocks = max(1, _VALUES_BETWEEN // (len(rows[0].weights) * side_by_side.shape[1]))
    for start in range(0, len(rows), n_blocks):
        blocks = rows[start : start + n_blocks]
        between = _multiply_rows(blocks, side_by_side).reshape(-1, width)
        exact = _multiply_columns(between, columns)
        places = product[blocks[0].outputs.start : blocks[-1].outputs.stop].transpose(0, 2, 1)
        np.rint(exact.reshape(places.shape), out=places, casting="unsafe")
    return product


def _multiply_rows(blocks: Sequence[_Block], columns: Floats) -> Floats:
    first, last = blocks[0].outputs.start, blocks[-1].outputs.stop
    product = np.empty((last - first, columns.shape[1]))
    for block in blocks:
        places = slice(block.outputs.start - first, block.outputs.stop - first)
        np.matmul(block.weights, columns[block.inputs], out=product[places])
    return product


def _multiply_columns(rows: Floats, blocks: Sequence[_Block]) -> Floats:
    product = np.empty_like(rows)
    for block in blocks:
        np.matmul(rows[:, block.inputs], block.transposed, out=product[:, block.outputs])
    return product


# Three strengths and two sides make six tables (about 2 MB each) for images of one size.
@lru_cache(maxsize=24)
def _blur_blocks(n: int, sigma: float) -> tuple[_Block, ...]:
    radius = int(_TRUNCATE_SIGMA * sigma + 0.5)
    offsets = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offsets / sigma) ** 2)
    weights = _whole_multiples(kernel / kernel.sum())
    weights[radius] += 1 - weights.sum()
    mirrored = (np.arange(n)[:, None] + offsets) % (2 * n)
    indices = np.minimum(mirrored, 2 * n - 1 - mirrored)
    return _dense_blocks(indices, np.broadcast_to(weights, indices.shape))


@lru_cache(maxsize=24)
def _zoom_blocks(n: int, fraction: float) -> tuple[_Block, ...]:
    centre = (n - 1) / 2
    positions = centre + (np.arange(n) - centre) * fraction
    lower = np.floor(positions).astype(np.intp)
    upper = _whole_multiples(positions - lower)
    indices = np.stack([lower, np.minimum(lower + 1, n - 1)], axis=1)
    return _dense_blocks(indices, np.stack([1 - upper, upper], axis=1))


def _whole_multiples(weights: Floats) -> Floats:
    return np.rint(weights * 2**_WEIGHT_BITS) / 2**_WEIGHT_BITS


def _dense_blocks(indices: Integers, weights: Floats) -> tuple[_Block, ...]:
    """Return the blocks of the matrix with `weights` (n, k) at the columns `indices` (n, k)."""
    n = len(indices)
    n_outputs = _OUTPUTS_PER_BLOCK[n > 512]
    slices = [slice(start, min(start + n_outputs, n)) for start in range(0, n, n_outputs)]
    return tuple(_dense_block(part, indices[part], weights[part]) for part in slices)


def _dense_block(outputs: slice, indices: Integers, weights: Floats) -> _Block:
    first = int(indices.min())
    n_rows, n_columns = len(indices), int(indices.max()) + 1 - first
    places = np.arange(n_rows)[:, None] * n_columns + (indices - first)
    dense = np.zeros(n_rows * n_columns)
    np.add.at(dense, places.ravel(), weights.ravel())  # mirrored taps meet in one place
    weights = dense.reshape(n_rows, n_columns)
    inputs = slice(first, first + n_columns)
    return _Block(outputs, inputs, weights, np.ascontiguousarray(weights.T))
