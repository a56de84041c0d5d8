"""Input transforms: a card's steps as one function from a canonical image to a tensor.

Image steps use Pillow on 8-bit pixels, as the releases do; the float steps are plain float32
arithmetic in the written order. Nothing is random and nothing depends on other images.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from PIL import Image

from crsbench.encoders.steps import (
    Convert,
    Crop,
    Normalise,
    Pad,
    Repeat,
    Resize,
    Scale,
    Step,
    Stretch,
    TensorResize,
)
from crsbench.errors import DataError


class Transform(Protocol):
    """From pixels (H, W, 3) uint8 to a float32 tensor (C, h, w), its channels last in memory."""

    def __call__(self, pixels: np.ndarray, out: np.ndarray | None = None) -> torch.Tensor:
        """Return the tensor; it lies in `out`, float32 (h, w, C), if that is given."""


def build_transform(steps: Sequence[Step]) -> Transform:
    """Return the function that the steps describe.

    Parameters
    ----------
    steps
        A card's transform.

    Returns
    -------
    Transform
        From pixels to the tensor that the encoder takes.
    """
    scale = [step.step for step in steps].index("scale")

    def transform(pixels: np.ndarray, out: np.ndarray | None = None) -> torch.Tensor:
        _check_pixels(pixels)
        if not all(_changes_nothing(step, pixels.shape) for step in steps[:scale]):
            pixels = np.asarray(apply_image_steps(pixels, steps))
        values = _float_values(pixels, steps[scale:], out)
        return torch.from_numpy(values).permute(2, 0, 1)

    return transform


def apply_image_steps(pixels: np.ndarray, steps: Sequence[Step]) -> Image.Image:
    """Return the 8-bit picture that the encoder sees: the steps before ``scale``.

    Parameters
    ----------
    pixels
        RGB image (H, W, 3), uint8.
    steps
        A card's transform.
    """
    _check_pixels(pixels)
    image = Image.fromarray(pixels)
    for step in steps:
        if isinstance(step, Scale):
            break
        image = _apply_to_image(step, image)
    return image


def _check_pixels(pixels: np.ndarray) -> None:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(f"expected (H, W, 3) uint8 pixels, got {pixels.shape} {pixels.dtype}")


def _changes_nothing(step: Step, shape: tuple[int, ...]) -> bool:
    """Return whether Pillow would only copy an RGB picture of the shape (H, W, 3)."""
    size = shape[1], shape[0]
    if isinstance(step, Convert):
        return step.mode == "RGB"
    if isinstance(step, Resize):
        return _resized(size, step) == size
    return isinstance(step, Crop) and size == (step.size_px, step.size_px)


def _apply_to_image(step: Step, image: Image.Image) -> Image.Image:
    if isinstance(step, Convert):
        return image.convert(step.mode)
    if isinstance(step, Stretch):
        return _stretched(image)
    if isinstance(step, Resize):
        return image.resize(
            _resized(image.size, step), Image.Resampling[step.interpolation.upper()]
        )
    if isinstance(step, Pad):
        return _padded(image, step)
    if isinstance(step, Crop):
        return _cropped(image, step)
    raise TypeError(f"{step.step} is no image step")


def _stretched(image: Image.Image) -> Image.Image:
    """Return the image with its minimum at 0 and its maximum at 255, truncated to 8 bits."""
    values = np.asarray(image).astype(np.float64)
    values -= values.min()
    peak = values.max()
    if peak > 0:
        values /= peak
        values *= 255
    return Image.fromarray(values.astype(np.uint8))


def _resized(size: tuple[int, int], step: Resize) -> tuple[int, int]:
    """Return the (width, height) after a resize.

    The truncation of the free side, and for ``longer`` the floating-point quotient, are those of
    the releases (torchvision's ``Resize``; CheXzero's ``preprocess``).
    """
    width, height = size
    if step.side == "both":
        return step.size_px, step.size_px
    if step.side == "longer":
        ratio = step.size_px / max(size)
        return max(1, int(width * ratio)), max(1, int(height * ratio))
    if width <= height:
        return step.size_px, int(step.size_px * height / width)
    return int(step.size_px * width / height), step.size_px


def _padded(image: Image.Image, step: Pad) -> Image.Image:
    side = max(image.size) if step.to == "longer" else step.to
    if max(image.size) > side:
        raise DataError(
            f"an image of {image.width} x {image.height} px does not fit into a pad of {side} px; "
            "resize its longer side before the pad (transform in the encoder's card)"
        )
    fill = step.fill if len(step.fill) > 1 else step.fill * len(image.getbands())
    canvas = Image.new(image.mode, (side, side), fill if len(fill) > 1 else fill[0])
    canvas.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return canvas


def _cropped(image: Image.Image, step: Crop) -> Image.Image:
    if min(image.size) < step.size_px:
        raise DataError(
            f"a crop of {step.size_px} px does not fit into an image of {image.width} x "
            f"{image.height} px; resize its shorter side, or pad it, before the crop (transform in "
            "the encoder's card)"
        )
    left, top = (_offset(length - step.size_px, step) for length in image.size)
    return image.crop((left, top, left + step.size_px, top + step.size_px))


def _offset(surplus: int, step: Crop) -> int:
    return surplus // 2 if step.offset == "floor" else round(surplus / 2)


def _float_values(pixels: np.ndarray, steps: Sequence[Step], out: np.ndarray | None) -> np.ndarray:
    """Return what the steps from ``scale`` on make of 8-bit pixels (h, w) or (h, w, C).

    The channels stay last in memory, as they lie in pixels and batches: transposing takes longer
    than the arithmetic. So does copying, hence the values lie in `out` if that is given, the steps
    work there if its shape allows, and the scale's division is also what makes floats of pixels.
    """
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    fits = out is not None and out.shape == pixels.shape
    values = out if out is not None and fits else np.empty(pixels.shape, np.float32)
    unit = isinstance(steps[0], Scale) and steps[0].to == "unit"
    np.divide(pixels, np.float32(255 if unit else 1), out=values, dtype=np.float32)
    for step in steps[1:]:
        values = _apply_to_values(step, values)
    if out is None or fits:
        return values
    out[...] = values
    return out


def _apply_to_values(step: Step, values: np.ndarray) -> np.ndarray:
    """Apply a step to contiguous float32 values (h, w, C), in place where that is possible."""
    if isinstance(step, Repeat):
        return np.repeat(values, step.channels, axis=2)
    if isinstance(step, Normalise):
        return _normalised(values, step)
    if isinstance(step, TensorResize):
        return _tensor_resized(values, step)
    raise TypeError(f"{step.step} is no tensor step")


def _normalised(values: np.ndarray, step: Normalise) -> np.ndarray:
    """Subtract the mean and divide by the deviation, in place."""
    height, width, channels = values.shape
    rows = values.reshape(height, width * channels)  # NumPy is slow along an axis of three
    rows -= _along_row(step.mean, width)
    rows /= _along_row(step.std, width)
    return values


@lru_cache(maxsize=16)
def _along_row(values: tuple[float, ...], width: int) -> np.ndarray:
    """Return the channels' values (float32) for a row of pixels; one number if they are equal."""
    if len(set(values)) == 1:
        return np.array(values[0], np.float32)
    return np.tile(np.array(values, np.float32), width)


def _tensor_resized(values: np.ndarray, step: TensorResize) -> np.ndarray:
    batch = torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)))[None]
    resized = torch.nn.functional.interpolate(
        batch,
        size=(step.size_px, step.size_px),
        mode=step.interpolation,
        align_corners=False,
        antialias=step.antialias,
    )
    return np.ascontiguousarray(resized[0].numpy().transpose(1, 2, 0))
