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

Exact sums. Blur and field of view are sums that are exact in float64 whatever their order
(`crsbench.banded`).

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

import numpy as np
import numpy.typing as npt
import PIL
import scipy
from PIL import Image, features
from scipy.special import ndtri

from crsbench.banded import blur_blocks, multiply, zoom_blocks
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
    return multiply(blur_blocks(height, sigma), picture.levels, blur_blocks(width, sigma))


def _narrow_field_of_view(picture: _Picture, fraction: float) -> Pixels:
    height, width, _ = picture.planes.shape
    return multiply(zoom_blocks(height, fraction), picture.levels, zoom_blocks(width, fraction))


_SEEDLESS: dict[str, Callable[[_Picture, float], Pixels]] = {
    "blur": _blur,
    "jpeg": _compress_as_jpeg,
    "contrast": _lower_contrast,
    "fov": _narrow_field_of_view,
}
