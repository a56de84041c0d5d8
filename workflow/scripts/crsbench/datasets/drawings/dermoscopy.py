"""Dermoscopy-like phantoms: one lesion on skin, of one of eight classes.

The class lies in the border and in the structures inside the lesion. Tone of the skin, colour
of the lesion, light, magnification, hairs and vignette vary alike in all classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from crsbench.datasets.drawings import canvas
from crsbench.datasets.drawings.canvas import Array
from crsbench.datasets.drawings.cases import Case, quotas, subject_sizes
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
#: Radius of a lesion in half-widths of the scene.
RADIUS = 0.34

#: A structure of the class shows this often; one of another class this often, and how faint.
KEPT = 0.75
BORROWED = 0.7
BORROWED_CONTRAST = (0.3, 0.9)
#: How many votes the tint of the class has in a lesion's colour, beside one of each pigment.
TINTED = 3
#: Range of the contrast of a lesion's structures.
CONTRAST = (0.08, 0.55)

#: Number of hairs (from, below) on bare, sparse and dense skin, and how often each occurs.
HAIRS = ((0, 1), (1, 6), (6, 18))
HAIRINESS = (0.45, 0.35, 0.20)

SKIN = np.array([[0.93, 0.76, 0.67], [0.86, 0.66, 0.55], [0.74, 0.53, 0.41], [0.58, 0.39, 0.29]])
PIGMENT = np.array([[0.50, 0.31, 0.20], [0.36, 0.21, 0.15], [0.62, 0.38, 0.33], [0.45, 0.33, 0.30]])
DARK_BROWN = np.array([0.20, 0.11, 0.08])
BLUE_GREY = np.array([0.36, 0.39, 0.47])
VESSEL = np.array([0.64, 0.13, 0.15])
WHITE = np.array([0.93, 0.87, 0.82])


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
class _Lesion:
    """Geometry of a lesion: its pixels, how deep they lie, and its mask, each (H, W).

    `depth` is the distance to the border along the ray from the centre in radii of the lesion,
    positive inside.
    """

    rng: np.random.Generator
    x: Array
    y: Array
    depth: Array
    mask: Array
    #: How strongly the structures show, in (0, 1].
    contrast: float

    @property
    def size_px(self) -> int:
        """Return the side of the scene."""
        return self.x.shape[0]

    def points(self, n_points: int, *, innermost: float = 0.0, outermost: float = 0.85) -> Array:
        """Return random points (n, 2) between two fractions of the radius."""
        angle = self.rng.uniform(0, 2 * np.pi, n_points)
        radius = RADIUS * np.sqrt(self.rng.uniform(innermost**2, outermost**2, n_points))
        return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)

    def number(self, fewest: int, most: int) -> int:
        """Return a random whole number from `fewest` to `most`."""
        return int(self.rng.integers(fewest, most + 1))

    def fainter(self) -> "_Lesion":
        """Return the same lesion, in which what is painted shows less."""
        return replace(self, contrast=self.contrast * self.rng.uniform(*BORROWED_CONTRAST))


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


Structure = Callable[[Array, _Lesion], Array]


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


def _lesion(rng: np.random.Generator, habit: _Habit, size_px: int) -> _Lesion:
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
    return _Lesion(rng, x, y, depth, mask, contrast=rng.uniform(*CONTRAST))


# Structures: each returns the image with one kind of mark painted on the lesion.


def _network(image: Array, lesion: _Lesion) -> Array:
    """Paint a pigment network: a honeycomb of brown lines, fading at the habit."""
    return _with_mesh(image, lesion, where=lesion.mask, bending=0.016)


def _rim_network(image: Array, lesion: _Lesion) -> Array:
    """Paint a delicate network on the outer half only."""
    where = lesion.mask * canvas.step(0.55 - lesion.depth, 0.2)
    return _with_mesh(image, lesion, where=where, bending=0.016)


def _broken_network(image: Array, lesion: _Lesion) -> Array:
    """Paint a coarse, bent network on a part of the lesion."""
    part = canvas.step(canvas.noise(lesion.rng, lesion.size_px, cells=5), 0.5)
    return _with_mesh(image, lesion, where=lesion.mask * part, bending=0.04)


def _with_mesh(image: Array, lesion: _Lesion, *, where: Array, bending: float) -> Array:
    rng = lesion.rng
    x = lesion.x + canvas.cloud(rng, lesion.size_px, cells=8, n_octaves=2) * bending
    y = lesion.y + canvas.cloud(rng, lesion.size_px, cells=8, n_octaves=2) * bending
    turn, wavenumber = rng.uniform(0, np.pi), 2 * np.pi / rng.uniform(0.050, 0.075)
    directions = turn + np.arange(3) * 2 * np.pi / 3
    waves = [np.cos(wavenumber * (x * np.cos(a) + y * np.sin(a))) for a in directions]
    fade = 0.7 + 0.3 * canvas.noise(rng, lesion.size_px, cells=6)
    lines = canvas.step(-0.5 - sum(waves), 0.6) * np.clip(fade, 0, 1)
    return canvas.blend(image, DARK_BROWN, lines * where * 0.85 * lesion.contrast)


def _blotches(image: Array, lesion: _Lesion) -> Array:
    """Paint patches of several colours: black-brown, blue-grey veil, red, regression white."""
    for colour in (DARK_BROWN, BLUE_GREY, VESSEL * 0.9, WHITE * 0.85):
        patch = canvas.step(
            canvas.cloud(lesion.rng, lesion.size_px, cells=6, n_octaves=2) - 0.7, 0.35
        )
        image = canvas.blend(image, colour, patch * lesion.mask * 0.75 * lesion.contrast)
    return image


def _streaks(image: Array, lesion: _Lesion) -> Array:
    """Paint radial streaks that cross a sector of the habit."""
    sector = lesion.rng.uniform(0, 2 * np.pi)
    angles = sector + lesion.rng.uniform(-1.0, 1.0, 16)
    paths = [
        RADIUS * np.outer([0.7, end], [np.cos(angle), np.sin(angle)])
        for angle, end in zip(angles, lesion.rng.uniform(1.0, 1.25, 16), strict=True)
    ]
    mask = canvas.strokes(lesion.size_px, paths, lesion.rng.uniform(0.010, 0.020, 16))
    return canvas.blend(image, DARK_BROWN, mask * 0.9 * lesion.contrast)


def _globules(image: Array, lesion: _Lesion) -> Array:
    """Paint irregular dark globules, crowded on one side."""
    rng = lesion.rng
    n_globules = lesion.number(8, 18)
    centres = lesion.points(n_globules, innermost=0.3) + rng.normal(0, 0.07, 2)
    radii = rng.uniform(0.010, 0.026, n_globules)
    mask = canvas.dots(lesion.size_px, centres, radii)
    return canvas.blend(image, DARK_BROWN, mask * 0.9 * lesion.contrast)


def _tree_vessels(image: Array, lesion: _Lesion) -> Array:
    """Paint arborising vessels: red trunks from the border that branch inwards."""
    rng = lesion.rng
    paths, widths = [], []
    for start in lesion.points(lesion.number(2, 4), innermost=0.75, outermost=1.0):
        inward = np.arctan2(-start[1], -start[0]) + rng.normal(0, 0.4)
        trunk = canvas.walk(rng, start=start, angle=inward, length=0.42, wander=0.9)
        paths.append(trunk)
        widths.append(0.014)
        for node in rng.integers(3, 12, 4):
            turn = inward + rng.choice([-1, 1]) * rng.uniform(0.5, 1.1)
            paths.append(canvas.walk(rng, start=trunk[node], angle=turn, length=0.2, wander=1.0))
            widths.append(0.008)
    mask = canvas.strokes(lesion.size_px, paths, widths)
    return canvas.blend(image, VESSEL, mask * 0.9 * lesion.contrast)


def _nests(image: Array, lesion: _Lesion) -> Array:
    """Paint large blue-grey ovoid nests."""
    centres = lesion.points(lesion.number(3, 6), outermost=0.75)
    return canvas.blend(
        image, BLUE_GREY, _ovals(lesion, centres, 0.035, 0.085, 0.025) * 0.75 * lesion.contrast
    )


def _ovals(
    lesion: _Lesion, centres: Array, smallest: float, largest: float, softness: float
) -> Array:
    return canvas.ellipses(
        lesion.size_px,
        centres,
        radii=lesion.rng.uniform(smallest, largest, centres.shape),
        angles=lesion.rng.uniform(0, np.pi, len(centres)),
        softness=softness,
        ragged=canvas.noise(lesion.rng, lesion.size_px, cells=18) * 0.005,
    )


def _follicles(image: Array, lesion: _Lesion) -> Array:
    """Paint a strawberry pattern: many white rings, each round a dark plug."""
    centres = _spread(lesion.points(90, outermost=1.05), apart=0.07)
    radii = lesion.rng.uniform(0.018, 0.030, len(centres))
    rings = canvas.dots(lesion.size_px, centres, radii)
    plugs = canvas.dots(lesion.size_px, centres, radii * 0.45)
    image = canvas.blend(image, WHITE, rings * 0.6 * lesion.contrast)
    return canvas.blend(image, DARK_BROWN * 1.8, plugs * 0.8 * lesion.contrast)


def _openings(image: Array, lesion: _Lesion) -> Array:
    """Paint comedo-like openings (dark plugs) and milia-like cysts (bright dots)."""
    rng = lesion.rng
    n_plugs, n_cysts = lesion.number(6, 14), lesion.number(6, 14)
    plugs = _ovals(lesion, lesion.points(n_plugs), 0.014, 0.034, 0.012)
    cysts = canvas.dots(lesion.size_px, lesion.points(n_cysts), rng.uniform(0.010, 0.020, n_cysts))
    image = canvas.blend(image, DARK_BROWN, plugs * 0.85 * lesion.contrast)
    return canvas.blend(image, WHITE, cysts * 0.85 * lesion.contrast)


def _ridges(image: Array, lesion: _Lesion) -> Array:
    """Paint cerebriform ridges: winding parallel furrows."""
    fold = canvas.noise(lesion.rng, lesion.size_px, cells=7)
    furrows = canvas.step(np.cos(2 * np.pi * fold / 0.75) - 0.55, 0.4)
    return canvas.blend(image, DARK_BROWN * 1.3, furrows * lesion.mask * 0.6 * lesion.contrast)


def _scar(image: Array, lesion: _Lesion) -> Array:
    """Paint a central white scar-like patch with ragged edges."""
    ragged = canvas.cloud(lesion.rng, lesion.size_px, cells=10) * 0.12
    patch = canvas.step(lesion.depth - lesion.rng.uniform(0.45, 0.65) + ragged, 0.15)
    return canvas.blend(image, WHITE, patch * 0.85 * lesion.contrast)


def _lacunae(image: Array, lesion: _Lesion) -> Array:
    """Paint crowded lacunae, red to violet, parted by pale septa."""
    rng = lesion.rng
    centres = _spread(lesion.points(120, outermost=0.95), apart=0.085)
    lakes = _ovals(lesion, centres, 0.034, 0.060, 0.014)
    colour = VESSEL * rng.uniform(0.6, 0.95) + np.array([0, 0.05, 0.16]) * rng.uniform(0, 1)
    image = canvas.blend(image, WHITE * 0.8, lesion.mask * 0.25 * lesion.contrast)
    return canvas.blend(image, colour, lakes * 0.8 * lesion.contrast)


def _keratin(image: Array, lesion: _Lesion) -> Array:
    """Paint a central mass of cracked white-yellow scale."""
    rng = lesion.rng
    ragged = canvas.cloud(rng, lesion.size_px, cells=8) * 0.2
    mass = canvas.step(lesion.depth - rng.uniform(0.4, 0.65) + ragged, 0.06)
    cracks = np.exp(-7 * np.abs(canvas.noise(rng, lesion.size_px, cells=14)))
    image = canvas.blend(image, WHITE * [1, 0.95, 0.78], mass * 0.8 * lesion.contrast)
    return canvas.blend(image, PIGMENT[2], mass * cracks * 0.8 * lesion.contrast)


def _coils(image: Array, lesion: _Lesion) -> Array:
    """Paint coiled and hairpin vessels round the centre."""
    rng = lesion.rng
    paths = [
        canvas.walk(
            rng,
            start=start,
            angle=rng.uniform(0, 2 * np.pi),
            length=rng.uniform(0.10, 0.2),
            wander=0.5,
            bend=rng.choice([-1, 1]) * rng.uniform(3, 8),
        )
        for start in lesion.points(24, innermost=0.55, outermost=1.0)
    ]
    mask = canvas.strokes(lesion.size_px, paths, [0.010] * len(paths))
    return canvas.blend(image, VESSEL, mask * 0.9 * lesion.contrast)


def _spread(points: Array, *, apart: float) -> Array:
    """Return those points that are at least `apart` from all earlier ones."""
    kept = points[:1]
    for point in points[1:]:
        if np.hypot(*(kept - point).T).min() >= apart:
            kept = np.vstack([kept, point])
    return kept


STRUCTURES: dict[str, tuple[Structure, ...]] = {
    "MEL": (_blotches, _broken_network, _streaks, _globules),
    "NV": (_network,),
    "BCC": (_nests, _tree_vessels),
    "AK": (_follicles,),
    "BKL": (_ridges, _openings),
    "DF": (_rim_network, _scar),
    "VASC": (_lacunae,),
    "SCC": (_coils, _keratin),
}


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
