"""Brushes for phantoms: fields, marks and blends on a square of side 2 about the origin.

Positions and lengths are in half-widths of the image (x to the right, y downwards, both from
-1 to 1), so that a drawing does not depend on the number of pixels. Images are float arrays
(3, H, W) or (H, W) with values in [0, 1]; masks are float arrays (H, W) in [0, 1].
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw
from scipy import ndimage

Array = NDArray[np.float64]
#: Lines are drawn this many times larger and averaged, which smooths their edges.
OVERSAMPLING = 3


def grid(size_px: int) -> tuple[Array, Array]:
    """Return x and y of the pixels' centres, each (H, W)."""
    axis = (np.arange(size_px) + 0.5) * 2 / size_px - 1
    x, y = np.meshgrid(axis, axis)
    return x, y


def noise(rng: np.random.Generator, size_px: int, *, cells: float) -> Array:
    """Return a smooth random field with mean 0 and variance 1, `cells` bumps across."""
    return _standardised(_bumps(rng, size_px, cells))


def cloud(rng: np.random.Generator, size_px: int, *, cells: float, n_octaves: int = 3) -> Array:
    """Return fractal noise: octaves of halving size and weight, with variance 1."""
    field = np.zeros((size_px, size_px))
    for octave in range(n_octaves):
        field += _bumps(rng, size_px, cells * 2**octave) * 0.5**octave
    return _standardised(field)


def _bumps(rng: np.random.Generator, size_px: int, cells: float) -> Array:
    n_nodes = max(2, round(cells)) + 3
    nodes = Image.fromarray(rng.standard_normal((n_nodes, n_nodes)).astype(np.float32))
    inner = (1.0, 1.0, n_nodes - 2.0, n_nodes - 2.0)
    field = nodes.resize((size_px, size_px), Image.Resampling.BICUBIC, box=inner)
    return np.asarray(field, dtype=np.float64)


def _standardised(field: Array) -> Array:
    return (field - field.mean()) / field.std()


def step(distance: ArrayLike, softness: float) -> Array:
    """Return a mask that rises from 0 to 1 where `distance` passes 0, within ± `softness`."""
    ramp = np.clip(np.asarray(distance, dtype=np.float64) / (2 * softness) + 0.5, 0, 1)
    return np.asarray(ramp * ramp * (3 - 2 * ramp))


def ellipses(
    size_px: int,
    centres: ArrayLike,
    *,
    radii: ArrayLike,
    angles: ArrayLike = 0.0,
    softness: float = 0.012,
    ragged: Array | None = None,
) -> Array:
    """Return the union of ellipses as one mask (H, W); each is computed on its own patch.

    Parameters
    ----------
    centres
        Shape (n, 2).
    radii
        Shape (n, 2), or (2,) for all; the first one points along the angle.
    angles
        Shape (n,) or one for all, in radians.
    softness
        Half the width of the edge, at least half a pixel.
    ragged
        Field (H, W) that moves the edge outwards, in half-widths.
    """
    centres = np.reshape(np.asarray(centres, dtype=np.float64), (-1, 2))
    mask = np.zeros((size_px, size_px))
    axis = (np.arange(size_px) + 0.5) * 2 / size_px - 1
    softness = max(softness, 1 / size_px)
    margin = 2 * softness + (0.0 if ragged is None else float(ragged.max()))
    for (cx, cy), (along, across), angle in zip(
        centres,
        np.broadcast_to(radii, centres.shape),
        np.broadcast_to(angles, len(centres)),
        strict=True,
    ):
        reach = max(along, across) + margin
        columns = slice(*np.searchsorted(axis, [cx - reach, cx + reach]))
        rows = slice(*np.searchsorted(axis, [cy - reach, cy + reach]))
        dx, dy = axis[columns][None, :] - cx, axis[rows][:, None] - cy
        u = (dx * np.cos(angle) + dy * np.sin(angle)) / along
        v = (dy * np.cos(angle) - dx * np.sin(angle)) / across
        distance = (1 - np.hypot(u, v)) * min(along, across)
        if ragged is not None:
            distance += ragged[rows, columns]
        patch = mask[rows, columns]
        np.maximum(patch, step(distance, softness), out=patch)
    return mask


def dots(size_px: int, centres: ArrayLike, radii: ArrayLike, *, softness: float = 0.012) -> Array:
    """Return the union of discs as one mask (H, W); centres (n, 2), radii (n,)."""
    both = np.repeat(np.reshape(radii, (-1, 1)), 2, axis=1)
    return ellipses(size_px, centres, radii=both, softness=softness)


def strokes(size_px: int, paths: Iterable[Array], widths: Iterable[float]) -> Array:
    """Return the mask of polylines; `paths` are (n, 2) points, `widths` in half-widths."""
    large = size_px * OVERSAMPLING
    canvas = Image.new("L", (large, large))
    brush = ImageDraw.Draw(canvas)
    for path, width in zip(paths, widths, strict=True):
        points = [tuple(point) for point in ((path + 1) * large / 2).tolist()]
        brush.line(points, fill=255, width=max(1, round(width * large / 2)))
    return _averaged(canvas)


def polygon(size_px: int, points: Array) -> Array:
    """Return the mask of a polygon given by (n, 2) points."""
    large = size_px * OVERSAMPLING
    canvas = Image.new("L", (large, large))
    outline = [tuple(point) for point in ((points + 1) * large / 2).tolist()]
    ImageDraw.Draw(canvas).polygon(outline, fill=255)
    return _averaged(canvas)


def _averaged(canvas: Image.Image) -> Array:
    return np.asarray(canvas.reduce(OVERSAMPLING), dtype=np.float64) / 255


def walk(
    rng: np.random.Generator,
    *,
    start: ArrayLike,
    angle: float,
    length: float,
    wander: float,
    bend: float = 0.0,
    n_steps: int = 14,
) -> Array:
    """Return a winding path (n_steps + 1, 2).

    Parameters
    ----------
    angle
        Direction of the first step, in radians.
    wander
        Standard deviation of the change of direction over the whole path, in radians.
    bend
        Steady change of direction over the whole path, in radians.
    """
    turns = rng.normal(bend / n_steps, wander / np.sqrt(n_steps), n_steps)
    angles = angle + np.cumsum(turns)
    steps = np.stack([np.cos(angles), np.sin(angles)], axis=1) * length / n_steps
    return np.vstack([np.zeros(2), np.cumsum(steps, axis=0)]) + np.asarray(start)


def tint(colour: ArrayLike) -> Array:
    """Return a colour (3,) as (3, 1, 1), to be multiplied with a field."""
    return np.reshape(np.asarray(colour, dtype=np.float64), (3, 1, 1))


def blend(image: Array, colour: ArrayLike, mask: Array) -> Array:
    """Return the image with a colour (3,), or another image, over it where `mask` is 1."""
    over = np.asarray(colour, dtype=np.float64)
    return image + ((tint(over) if over.shape == (3,) else over) - image) * mask


def blur(image: Array, sigma: float) -> Array:
    """Return the image, each channel blurred by a Gaussian of `sigma` half-widths."""
    sigma_px = sigma * image.shape[-1] / 2
    return np.asarray(ndimage.gaussian_filter(image, sigma_px, axes=(-2, -1), truncate=3.0))


def to_image(image: Array) -> Image.Image:
    """Return the 8-bit Pillow image, grey or RGB; values outside [0, 1] are clipped."""
    pixels = np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)
    return Image.fromarray(
        np.ascontiguousarray(np.moveaxis(pixels, 0, -1) if image.ndim == 3 else pixels)
    )


def from_image(image: Image.Image) -> Array:
    """Return the values in [0, 1] of an RGB image, (3, H, W)."""
    pixels = np.asarray(image, dtype=np.float64) / 255
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 0))
