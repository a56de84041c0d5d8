"""Input transforms: a card's steps as one function from a canonical image to a tensor.

Image steps use Pillow on 8-bit pixels, as the releases do; the float steps are plain float32
arithmetic in the written order. Nothing is random and nothing depends on other images.
"""

from collections.abc import Callable, Sequence

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

Transform = Callable[[np.ndarray], torch.Tensor]


def build_transform(steps: Sequence[Step]) -> Transform:
    """Return the function that the steps describe.

    Parameters
    ----------
    steps
        A card's transform.

    Returns
    -------
    callable
        From pixels (H, W, 3) uint8 to a contiguous float32 tensor (C, h, w).
    """
    scale = [step.step for step in steps].index("scale")

    def transform(pixels: np.ndarray) -> torch.Tensor:
        return _to_tensor(apply_image_steps(pixels, steps), steps[scale:])

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
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(f"expected (H, W, 3) uint8 pixels, got {pixels.shape} {pixels.dtype}")
    image = Image.fromarray(pixels)
    for step in steps:
        if isinstance(step, Scale):
            break
        image = _apply_to_image(step, image)
    return image


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
        raise ValueError(f"an image of {image.size} px does not fit into a pad of {side} px")
    fill = step.fill if len(step.fill) > 1 else step.fill * len(image.getbands())
    canvas = Image.new(image.mode, (side, side), fill if len(fill) > 1 else fill[0])
    canvas.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return canvas


def _cropped(image: Image.Image, step: Crop) -> Image.Image:
    left, top = (_offset(length - step.size_px, step) for length in image.size)
    return image.crop((left, top, left + step.size_px, top + step.size_px))


def _offset(surplus: int, step: Crop) -> int:
    return surplus // 2 if step.offset == "floor" else round(surplus / 2)


def _to_tensor(image: Image.Image, steps: Sequence[Step]) -> torch.Tensor:
    pixels = np.asarray(image)
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    values = np.ascontiguousarray(pixels, dtype=np.float32)
    for step in steps:
        values = _apply_to_values(step, values)
    return torch.from_numpy(values)


def _apply_to_values(step: Step, values: np.ndarray) -> np.ndarray:
    """Apply a step to contiguous float32 values (C, h, w), in place where that is possible."""
    if isinstance(step, Scale):
        if step.to == "unit":
            values /= np.float32(255)
        return values
    if isinstance(step, Repeat):
        return np.repeat(values, step.channels, axis=0)
    if isinstance(step, Normalise):
        mean, std = (np.array(v, np.float32).reshape(-1, 1, 1) for v in (step.mean, step.std))
        values -= mean
        values /= std
        return values
    if isinstance(step, TensorResize):
        return _tensor_resized(values, step)
    raise TypeError(f"{step.step} is no tensor step")


def _tensor_resized(values: np.ndarray, step: TensorResize) -> np.ndarray:
    batch = torch.from_numpy(np.ascontiguousarray(values))[None]
    resized = torch.nn.functional.interpolate(
        batch,
        size=(step.size_px, step.size_px),
        mode=step.interpolation,
        align_corners=False,
        antialias=step.antialias,
    )
    return resized[0].numpy()
