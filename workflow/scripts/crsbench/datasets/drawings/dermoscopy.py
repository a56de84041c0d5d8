"""Dermoscopy-like phantoms: one lesion on skin, of one of eight classes.

The class lies in the border and in the structures inside the lesion. Tone of the skin, colour
of the lesion, light, magnification, hairs and vignette vary alike in all classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from crsbench.datasets.drawings import canvas
from crsbench.datasets.drawings.canvas import Array
from crsbench.datasets.drawings.cases import Case, quotas, subject_sizes
from crsbench.datasets.drawings.lesions import PIGMENT, RADIUS, STRUCTURES, Lesion, Structure
from crsbench.digests import generator

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
#: The lesion is drawn on a square of this many image sides, and photographed from it.
SCENE_SIDES = 1.3

#: A structure of the class shows this often; one of another class this often.
KEPT = 0.75
BORROWED = 0.7
#: How many votes the tint of the class has in a lesion's colour, beside one of each pigment.
TINTED = 3
#: Range of the contrast of a lesion's structures.
CONTRAST = (0.08, 0.55)

#: Number of hairs (from, below) on bare, sparse and dense skin, and how often each occurs.
HAIRS = ((0, 1), (1, 6), (6, 18))
HAIRINESS = (0.45, 0.35, 0.20)

SKIN = np.array([[0.93, 0.76, 0.67], [0.86, 0.66, 0.55], [0.74, 0.53, 0.41], [0.58, 0.39, 0.29]])


def plan(n_images: int, seed: int) -> list[Case]:
    """Return the images to draw: lesions of one class each, with one to three images."""
    rng = generator("phantom", KIND, seed, "plan")
    lesions = [
        (name, size)
        for name, count in zip(PREVALENCE, quotas([*PREVALENCE.values()], n_images), strict=True)
        for size in subject_sizes(rng, count, IMAGES_PER_LESION)
    ]
    return [
        Case(
            f"lesion{number:04d}-{shot}", f"lesion{number:04d}", frozenset({name}), {"label": name}
        )
        for number, (name, size) in enumerate(lesions[k] for k in rng.permutation(len(lesions)))
        for shot in range(size)
    ]


def draw(case: Case, size_px: int, seed: int) -> Image.Image:
    """Return the RGB picture of a case."""
    lesion_rng, rng = case.randomness(KIND, seed)
    (name,) = case.signs
    scene = _scene(lesion_rng, name, round(size_px * SCENE_SIDES))
    image = _framed(rng, canvas.to_image(scene), size_px)
    image = _with_hairs(rng, image)
    return canvas.to_image(_lit(rng, image))


@dataclass(frozen=True)
class _Habit:
    """How lesions of a class tend to look as a whole.

    `waves` and `notches` are amplitudes of the border and `softness` its width, in radii; `size`
    is the mean radius relative to others, `tint` the colour that its pigment leans to.
    """

    waves: float
    notches: float
    softness: float
    size: float
    tint: tuple[float, float, float]


HABITS = {
    "MEL": _Habit(waves=0.13, notches=0.08, softness=0.10, size=1.08, tint=(0.26, 0.17, 0.16)),
    "NV": _Habit(waves=0.06, notches=0.03, softness=0.13, size=0.95, tint=(0.48, 0.29, 0.18)),
    "BCC": _Habit(waves=0.08, notches=0.04, softness=0.15, size=1.0, tint=(0.70, 0.48, 0.46)),
    "AK": _Habit(waves=0.10, notches=0.08, softness=0.24, size=1.05, tint=(0.74, 0.42, 0.36)),
    "BKL": _Habit(waves=0.08, notches=0.05, softness=0.07, size=1.0, tint=(0.52, 0.38, 0.26)),
    "DF": _Habit(waves=0.06, notches=0.03, softness=0.22, size=0.88, tint=(0.60, 0.42, 0.32)),
    "VASC": _Habit(waves=0.08, notches=0.04, softness=0.10, size=0.92, tint=(0.55, 0.18, 0.22)),
    "SCC": _Habit(waves=0.09, notches=0.06, softness=0.15, size=1.08, tint=(0.76, 0.50, 0.42)),
}


def _scene(rng: np.random.Generator, name: str, size_px: int) -> Array:
    """Return the lesion on its skin (3, H, W)."""
    tone = _mixed(rng, SKIN)
    image = _skin(rng, size_px, tone)
    lesion = _lesion(rng, HABITS[name], size_px)
    colour = _mixed(rng, np.vstack([PIGMENT, np.tile(HABITS[name].tint, (TINTED, 1))]))
    pigment = colour * tone / SKIN[1]
    shade = 0.035 * canvas.cloud(rng, size_px, cells=6, n_octaves=2) - 0.10 * np.clip(
        lesion.depth, 0, 1
    )
    body = image * 0.25 + canvas.tint(pigment) * 0.75 + shade
    image = canvas.blend(image, body, lesion.mask * rng.uniform(0.45, 0.9))
    for structure in _borrowed(rng, name):
        image = structure(image, lesion.fainter())
    for structure in _kept(rng, STRUCTURES[name]):
        image = structure(image, lesion)
    return image


def _kept(rng: np.random.Generator, structures: Sequence[Structure]) -> list[Structure]:
    """Return the structures that show in this lesion: each mostly, one always."""
    shown = rng.random(len(structures)) < KEPT
    shown[rng.integers(len(structures))] = True
    return [structure for structure, keep in zip(structures, shown, strict=True) if keep]


def _borrowed(rng: np.random.Generator, name: str) -> list[Structure]:
    """Return a structure of another class, in some lesions."""
    other = rng.choice([key for key in STRUCTURES if key != name])
    structure = STRUCTURES[other][rng.integers(len(STRUCTURES[other]))]
    return [structure] if rng.random() < BORROWED else []


def _mixed(rng: np.random.Generator, palette: Array) -> Array:
    """Return a random mixture of a palette's colours, mostly of one."""
    return np.asarray(rng.dirichlet(np.full(len(palette), 0.5)) @ palette)


def _skin(rng: np.random.Generator, size_px: int, tone: Array) -> Array:
    """Return skin with mottling and fine furrows."""
    mottle = canvas.cloud(rng, size_px, cells=4, n_octaves=2) * rng.uniform(0.01, 0.025)
    redness = canvas.noise(rng, size_px, cells=7) * rng.uniform(0.005, 0.02)
    furrows = np.exp(-5 * np.abs(canvas.noise(rng, size_px, cells=rng.uniform(25, 45))))
    relief = mottle - furrows * rng.uniform(0.01, 0.05)
    return canvas.tint(tone) + relief + redness * canvas.tint([0.6, -0.8, -0.6])


def _lesion(rng: np.random.Generator, habit: _Habit, size_px: int) -> Lesion:
    x, y = canvas.grid(size_px)
    turns = np.linspace(-np.pi, np.pi, 720)
    orders = np.arange(2, 7)
    amplitudes = habit.waves * rng.uniform(0.4, 1.3) * rng.standard_normal(5) / orders**0.5
    phases = rng.uniform(0, 2 * np.pi, (5, 1))
    outline = 1 + amplitudes @ np.cos(orders[:, None] * turns + phases)
    radius = np.interp(np.arctan2(y, x), turns, outline * habit.size * rng.uniform(0.85, 1.15))
    radius = radius + habit.notches * canvas.cloud(rng, size_px, cells=12, n_octaves=2)
    depth = radius - np.hypot(x, y) / RADIUS
    mask = canvas.step(depth, habit.softness * rng.uniform(0.7, 1.4))
    return Lesion(rng, x, y, depth, mask, contrast=rng.uniform(*CONTRAST))


# The photograph: framing, hairs, light.


def _framed(rng: np.random.Generator, scene: Image.Image, size_px: int) -> Array:
    """Return a rotated, shifted and magnified view of the scene (3, H, W)."""
    turn, window = rng.uniform(0, 2 * np.pi), rng.uniform(0.48, 0.66)
    scale = window * scene.width / size_px
    c, s = scale * np.cos(turn), scale * np.sin(turn)
    middle = scene.width / 2 * (1 + rng.uniform(-0.08, 0.08, 2))
    half = size_px / 2
    coefficients = (
        c,
        -s,
        middle[0] - c * half + s * half,
        s,
        c,
        middle[1] - s * half - c * half,
    )
    view = scene.transform(
        (size_px, size_px), Image.Transform.AFFINE, coefficients, Image.Resampling.BICUBIC
    )
    if rng.random() < 0.5:
        view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return canvas.from_image(view)


def _with_hairs(rng: np.random.Generator, image: Array) -> Array:
    n_hairs = int(rng.integers(*HAIRS[rng.choice(len(HAIRS), p=HAIRINESS)]))
    lie = rng.uniform(0, 2 * np.pi)
    paths = [
        canvas.walk(
            rng,
            start=rng.uniform(-1, 1, 2) - [np.cos(lie), np.sin(lie)],
            angle=lie + rng.normal(0, 0.35),
            length=rng.uniform(1.0, 2.4),
            wander=0.3,
            bend=rng.normal(0, 0.7),
        )
        for _ in range(n_hairs)
    ]
    mask = canvas.strokes(image.shape[-1], paths, rng.uniform(0.010, 0.020, n_hairs))
    colour: ArrayLike = [0.12, 0.08, 0.06] if rng.random() < 0.75 else [0.75, 0.62, 0.42]
    return canvas.blend(image, colour, mask * 0.85)


def _lit(rng: np.random.Generator, image: Array) -> Array:
    """Return the image under uneven light, with a colour cast, vignette and sensor noise."""
    size_px = image.shape[-1]
    x, y = canvas.grid(size_px)
    lean = rng.normal(0, 0.06, 2)
    light = rng.uniform(0.72, 1.12) * (1 + lean[0] * x + lean[1] * y)
    light = light - rng.uniform(0, 0.14) * (x**2 + y**2)
    cast = 1 + rng.normal(0, 0.05, 3)
    image = np.clip(image * light * canvas.tint(cast), 0, 1) ** rng.uniform(0.8, 1.25)
    image = canvas.blur(image, rng.uniform(0.0, 0.009))
    if rng.random() < 0.4:
        rim = canvas.step(np.hypot(x, y) - rng.uniform(1.0, 1.25), rng.uniform(0.02, 0.10))
        image = canvas.blend(image, [0.02, 0.02, 0.02], rim)
    return image + rng.normal(0, rng.uniform(0.004, 0.02), image.shape)
