"""Dermoscopy-like phantoms: one lesion on skin, of one of eight classes.

The class lies in the border and in the structures inside the lesion; tone of the skin, colour
of the lesion, light, magnification, hairs and vignette are the same for all classes.
"""

import numpy as np
from PIL import Image

from crsbench.datasets.drawings import canvas
from crsbench.datasets.drawings.canvas import Array
from crsbench.datasets.drawings.cases import Case, quotas, subject_sizes
from crsbench.provenance import generator

KIND = "dermoscopy"
#: Class and its share of the images.
PREVALENCE = {
    "MEL": 0.16,
    "NV": 0.25,
    "BCC": 0.14,
    "AK": 0.09,
    "BKL": 0.12,
    "DF": 0.07,
    "VASC": 0.08,
    "SCC": 0.09,
}
COLUMNS = ("label",)
IMAGES_PER_LESION = (0.55, 0.3, 0.15)


def plan(n_images: int, seed: int) -> list[Case]:
    """Return the images to draw: lesions of one class each, with one to three images."""
    rng = generator("phantom", KIND, seed, "plan")
    lesions = [
        (name, size)
        for name, count in zip(PREVALENCE, quotas([*PREVALENCE.values()], n_images), strict=True)
        for size in subject_sizes(rng, count, IMAGES_PER_LESION)
    ]
    return [
        Case(f"L{number:04d}-{shot}", f"L{number:04d}", frozenset({name}), {"label": name})
        for number, (name, size) in enumerate(lesions[k] for k in rng.permutation(len(lesions)))
        for shot in range(size)
    ]


def draw(case: Case, *, size_px: int, seed: int) -> Image.Image:
    """Return the RGB picture of a case."""
    lesion_rng, rng = case.randomness(KIND, seed)
    (name,) = case.signs
    lesion = _Lesion(name, lesion_rng, rng, size_px)
    image = _skin(rng, size_px, tone=lesion.skin)
    image = lesion.painted(image)
    image = _with_hairs(rng, image)
    return canvas.to_image(_photographed(rng, image))


def _skin(rng: np.random.Generator, size_px: int, *, tone: Array) -> Array:
    """Return skin with mottling and fine furrows."""
    image = np.broadcast_to(tone, (size_px, size_px, 3)).copy()
    mottle = canvas.cloud(rng, size_px, cells=3) * rng.uniform(0.01, 0.035)
    redness = canvas.noise(rng, size_px, cells=5) * rng.uniform(0.005, 0.03)
    furrows = np.abs(canvas.noise(rng, size_px, cells=rng.uniform(18, 30)))
    image += mottle[..., None] + redness[..., None] * np.array([0.6, -0.8, -0.6])
    return image - (np.exp(-4 * furrows) * rng.uniform(0.01, 0.05))[..., None]
