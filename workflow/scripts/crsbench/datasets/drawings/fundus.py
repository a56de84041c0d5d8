"""Fundus-like phantoms: the back of one eye with one of five ordinal grades of retinopathy.

The grade lies in the number, kind and place of small marks; drusen, reflexes and dust, which
look alike but mean nothing, come at every grade, as do colour, haze, light and framing.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image

from crsbench.datasets.drawings import canvas
from crsbench.datasets.drawings.canvas import Array
from crsbench.datasets.drawings.cases import Case, quotas
from crsbench.digests import generator

KIND = "fundus"
#: Grade, mildest first, and its share of the patients.
PREVALENCE = {
    "no retinopathy": 0.34,
    "mild": 0.16,
    "moderate": 0.22,
    "severe": 0.14,
    "proliferative": 0.14,
}
GRADES = tuple(PREVALENCE)
COLUMNS = ("label",)
#: Share of the patients with images of both eyes, and of those with another grade in the second.
BOTH_EYES = 0.4
UNEQUAL_EYES = 0.25

RETINA = np.array([[0.80, 0.36, 0.16], [0.66, 0.25, 0.10], [0.86, 0.50, 0.28], [0.52, 0.22, 0.13]])
VESSEL = np.array([0.42, 0.07, 0.05])
BLOOD = np.array([0.34, 0.03, 0.03])
EXUDATE = np.array([0.98, 0.90, 0.55])
COTTON = np.array([0.93, 0.86, 0.72])
#: By how much veins widen, and haze grows, with each grade.
VENOUS_DILATATION = 0.10
HAZE = 0.07
#: Optic disc and macula lie this far to either side of the centre.
DISC_OFFSET = 0.52
MACULA_OFFSET = -0.12


def plan(n_images: int, seed: int) -> list[Case]:
    """Return the images to draw: patients with one eye or both, mostly of the same grade."""
    rng = generator("phantom", KIND, seed, "plan")
    n_pairs = round(n_images * BOTH_EYES / (1 + BOTH_EYES))
    n_patients = n_images - n_pairs
    counts = quotas([*PREVALENCE.values()], n_patients)
    grades = rng.permutation(np.repeat(np.arange(len(GRADES)), counts))
    cases = []
    for patient, grade in enumerate(grades):
        cases.append(_case(patient, "right", int(grade)))
        if patient < n_pairs:
            change = rng.choice([-1, 1]) * (rng.random() < UNEQUAL_EYES)
            cases.append(_case(patient, "left", int(np.clip(grade + change, 0, 4))))
    return cases


def _case(patient: int, eye: str, grade: int) -> Case:
    group = f"patient{patient:04d}"
    name = GRADES[grade]
    return Case(f"{group}-{eye}", group, frozenset({name, eye}), {"label": name})


def draw(case: Case, size_px: int, seed: int) -> Image.Image:
    """Return the RGB picture of a case."""
    patient_rng, rng = case.randomness(KIND, seed)
    palette = patient_rng.dirichlet(np.full(len(RETINA), 0.6)) @ RETINA
    side = 1 if "right" in case.signs else -1
    grade = GRADES.index(case.cells["label"])
    image, vessels = _retina(rng, size_px, palette, side=side, grade=grade)
    for distractor in (_with_drusen, _with_sheen, _with_dust):
        image = distractor(rng, image)
    for mark, (fewest, most) in MARKS[GRADES[grade]].items():
        image = mark(rng, image, vessels, int(rng.integers(fewest, most + 1)))
    return canvas.to_image(_photographed(rng, image, grade=grade))


class _Vessels:
    """The vessels of an eye, and the places of its optic disc and macula."""

    def __init__(self, rng: np.random.Generator, side: int, *, dilatation: float) -> None:
        self.disc = np.array([side * DISC_OFFSET, rng.normal(0, 0.05)])
        self.macula = np.array([side * MACULA_OFFSET, rng.normal(0.03, 0.04)])
        self.paths: list[Array] = []
        self.widths: list[float] = []
        for vertical in (-1, 1):
            for width in (0.034 * dilatation, 0.024):
                self._arcade(rng, side, vertical, width)
                angle = np.arctan2(vertical * rng.uniform(0.6, 1.6), side)
                self._twig(rng, self.disc, angle, 0.7, width * 0.6)

    def _arcade(self, rng: np.random.Generator, side: int, vertical: int, width: float) -> None:
        """Add a trunk that bends round the macula, with branches."""
        angle = np.arctan2(vertical, -0.35 * side) + rng.normal(0, 0.12)
        bend = side * vertical * rng.uniform(1.1, 1.5)
        trunk = canvas.walk(
            rng, start=self.disc, angle=angle, length=1.5, wander=0.35, bend=bend, n_steps=24
        )
        self._tapering(trunk, width)
        for node in rng.choice(np.arange(4, 20), 7, replace=False):
            along = np.arctan2(*(trunk[node + 1] - trunk[node])[::-1])
            turn = along + rng.choice([-1, 1]) * rng.uniform(0.5, 1.0)
            length = rng.uniform(0.25, 0.6)
            self._twig(rng, trunk[node], turn, length, width * rng.uniform(0.35, 0.5))

    def _twig(
        self, rng: np.random.Generator, start: Array, angle: float, length: float, width: float
    ) -> None:
        twig = canvas.walk(rng, start=start, angle=angle, length=length, wander=0.6)
        self._tapering(twig, width)
        turn = angle + rng.choice([-1, 1]) * 0.6
        fork = canvas.walk(rng, start=twig[6], angle=turn, length=length / 2, wander=0.6)
        self.paths.append(fork)
        self.widths.append(width * 0.6)

    def _tapering(self, path: Array, width: float) -> None:
        third = len(path) // 3
        for part in range(3):
            self.paths.append(path[part * third : (part + 1) * third + 1])
            self.widths.append(width * (1 - 0.25 * part))

    def near(self, rng: np.random.Generator, n_points: int, *, spread: float) -> Array:
        """Return random points (n, 2) about the vessels, inside the field."""
        nodes = np.vstack(self.paths)
        nodes = nodes[np.hypot(*nodes.T) < 0.8]
        return rng.choice(nodes, n_points) + rng.normal(0, spread, (n_points, 2))


def _retina(
    rng: np.random.Generator, size_px: int, colour: Array, *, side: int, grade: int
) -> tuple[Array, _Vessels]:
    """Return a healthy retina (3, H, W) and its vessels."""
    x, y = canvas.grid(size_px)
    shade = 1 + 0.05 * canvas.cloud(rng, size_px, cells=4)
    choroid = np.abs(canvas.cloud(rng, size_px, cells=rng.uniform(10, 16), n_octaves=2))
    shade *= 1 - rng.uniform(0, 0.14) * np.exp(-2 * choroid)
    vessels = _Vessels(rng, side, dilatation=1 + VENOUS_DILATATION * grade)
    macula = np.exp(-((x - vessels.macula[0]) ** 2 + (y - vessels.macula[1]) ** 2) / 0.05)
    shade *= 1 - rng.uniform(0.2, 0.45) * macula
    image = _with_disc(rng, canvas.tint(colour) * shade, vessels.disc)
    mask = canvas.blur(canvas.strokes(size_px, vessels.paths, vessels.widths), 0.005)
    return canvas.blend(image, VESSEL * (0.4 + colour), mask * rng.uniform(0.5, 0.85)), vessels


def _with_disc(rng: np.random.Generator, image: Array, centre: Array) -> Array:
    """Paint the optic disc with its paler cup."""
    size_px = image.shape[-1]
    radii = np.array([0.14, 0.16]) * rng.uniform(0.85, 1.15)
    rim = canvas.ellipses(size_px, centre, radii=radii, softness=0.03)
    cup = canvas.ellipses(size_px, centre, radii=radii * rng.uniform(0.35, 0.65), softness=0.04)
    image = canvas.blend(image, [0.95, 0.70, 0.40], rim * 0.8)
    return canvas.blend(image, [1.0, 0.90, 0.68], cup * 0.8)


# Marks that mean nothing: drusen, sheen, dust.


def _with_drusen(rng: np.random.Generator, image: Array) -> Array:
    """Paint soft yellowish spots about the macula, in some eyes."""
    n_spots = int(rng.integers(5, 30)) if rng.random() < 0.35 else 0
    spots = rng.normal(0, 0.25, (n_spots, 2))
    mask = canvas.dots(image.shape[-1], spots, rng.uniform(0.008, 0.022, n_spots), softness=0.016)
    return canvas.blend(image, EXUDATE * 0.9, mask * rng.uniform(0.3, 0.6))


def _with_sheen(rng: np.random.Generator, image: Array) -> Array:
    """Paint the reflexes of a young retina along the arcades, in some eyes."""
    x, y = canvas.grid(image.shape[-1])
    ring = np.exp(-(((np.hypot(x, y) - 0.5) / 0.12) ** 2))
    streaks = canvas.step(canvas.cloud(rng, image.shape[-1], cells=7) - 0.6, 0.6)
    strength = rng.uniform(0.1, 0.4) * (rng.random() < 0.4)
    return canvas.blend(image, [0.85, 0.85, 0.75], ring * streaks * strength)


def _with_dust(rng: np.random.Generator, image: Array) -> Array:
    """Paint grey specks of dust on the lens, blurred, in some images."""
    n_specks = int(rng.integers(3, 16)) if rng.random() < 0.4 else 0
    specks = rng.uniform(-0.8, 0.8, (n_specks, 2))
    radii = rng.uniform(0.010, 0.03, n_specks)
    mask = canvas.dots(image.shape[-1], specks, radii, softness=0.02)
    return canvas.blend(image, [0.25, 0.17, 0.12], mask * rng.uniform(0.2, 0.5))


# Marks of retinopathy: each paints a number of one kind of lesion.


def _aneurysms(rng: np.random.Generator, image: Array, vessels: _Vessels, number: int) -> Array:
    """Paint microaneurysms: tiny red dots."""
    centres = vessels.near(rng, number, spread=0.14)
    mask = canvas.dots(image.shape[-1], centres, rng.uniform(0.013, 0.022, number))
    return canvas.blend(image, BLOOD, mask * rng.uniform(0.65, 0.9))


def _haemorrhages(rng: np.random.Generator, image: Array, vessels: _Vessels, number: int) -> Array:
    """Paint blot haemorrhages: dark red, ragged, larger than dots."""
    mask = canvas.ellipses(
        image.shape[-1],
        vessels.near(rng, number, spread=0.16),
        radii=rng.uniform(0.024, 0.060, (number, 2)),
        angles=rng.uniform(0, np.pi, number),
        ragged=canvas.noise(rng, image.shape[-1], cells=24) * 0.008,
    )
    return canvas.blend(image, BLOOD, mask * rng.uniform(0.65, 0.9))


def _exudates(rng: np.random.Generator, image: Array, vessels: _Vessels, number: int) -> Array:
    """Paint clusters and rings of hard exudates: sharp yellow specks."""
    hubs = vessels.macula + rng.normal(0, 0.28, (number, 1, 2))
    angles = rng.uniform(0, 2 * np.pi, (number, 9))
    rays = np.stack([np.cos(angles), np.sin(angles)], axis=2)
    specks = hubs + rays * rng.uniform(0.03, 0.11, (number, 9, 1))
    radii = rng.uniform(0.008, 0.020, number * 9)
    mask = canvas.dots(image.shape[-1], specks, radii, softness=0.008)
    return canvas.blend(image, EXUDATE, mask * rng.uniform(0.5, 0.85))


def _cotton_wool(rng: np.random.Generator, image: Array, vessels: _Vessels, number: int) -> Array:
    """Paint cotton-wool spots: pale, feathery, beside the arcades."""
    mask = canvas.ellipses(
        image.shape[-1],
        vessels.near(rng, number, spread=0.10),
        radii=rng.uniform(0.035, 0.075, (number, 2)),
        angles=rng.uniform(0, np.pi, number),
        softness=0.03,
        ragged=canvas.cloud(rng, image.shape[-1], cells=14) * 0.012,
    )
    return canvas.blend(image, COTTON, mask * rng.uniform(0.35, 0.65))


def _new_vessels(rng: np.random.Generator, image: Array, vessels: _Vessels, number: int) -> Array:
    """Paint fans of fine curled new vessels, some of them on the disc."""
    hubs = vessels.near(rng, number, spread=0.05)
    if rng.random() < 0.5:
        hubs[0] = vessels.disc
    paths = [
        canvas.walk(
            rng,
            start=hub,
            angle=angle,
            length=rng.uniform(0.18, 0.38),
            wander=1.2,
            bend=rng.choice([-1, 1]) * rng.uniform(2, 6),
        )
        for hub in hubs
        for angle in rng.uniform(0, 2 * np.pi, 8)
    ]
    mask = canvas.strokes(image.shape[-1], paths, [0.010] * len(paths))
    return canvas.blend(image, BLOOD, mask * rng.uniform(0.65, 0.9))


def _boat_of_blood(rng: np.random.Generator, image: Array, vessels: _Vessels, number: int) -> Array:
    """Paint preretinal haemorrhages: boat-shaped, with a level upper edge."""
    y = canvas.grid(image.shape[-1])[1]
    for _ in range(number):
        centre = vessels.macula + rng.normal(0, 0.25, 2) + [0, 0.2]
        radii = rng.uniform([0.14, 0.10], [0.28, 0.22])
        bowl = canvas.ellipses(image.shape[-1], centre, radii=radii, softness=0.02)
        image = canvas.blend(image, BLOOD, bowl * canvas.step(y - centre[1], 0.015) * 0.75)
    return image


Mark = Callable[[np.random.Generator, Array, _Vessels, int], Array]
#: Grade and, for each kind of mark, the fewest and the most in an eye.
MARKS: dict[str, dict[Mark, tuple[int, int]]] = {
    "no retinopathy": {},
    "mild": {_aneurysms: (3, 9)},
    "moderate": {_aneurysms: (5, 14), _haemorrhages: (1, 5), _exudates: (1, 4)},
    "severe": {
        _aneurysms: (10, 24),
        _haemorrhages: (7, 16),
        _exudates: (0, 4),
        _cotton_wool: (1, 5),
    },
    "proliferative": {
        _aneurysms: (4, 20),
        _haemorrhages: (1, 9),
        _exudates: (0, 4),
        _cotton_wool: (0, 2),
        _new_vessels: (3, 6),
        _boat_of_blood: (0, 2),
    },
}


def _photographed(rng: np.random.Generator, image: Array, *, grade: int) -> Array:
    """Return the image under uneven light and haze, in the camera's round or clipped field."""
    size_px = image.shape[-1]
    x, y = canvas.grid(size_px)
    lean = rng.normal(0, 0.12, 2)
    light = rng.uniform(0.65, 1.15) * (1 + lean[0] * x + lean[1] * y)
    light = light * (1 - rng.uniform(0.05, 0.35) * (x**2 + y**2))
    image = image * light * canvas.tint(1 + rng.normal(0, 0.07, 3))
    haze = rng.uniform(0, 0.08 + HAZE * grade)
    image = canvas.blend(image, [0.62, 0.55, 0.45], np.full(x.shape, haze))
    image = canvas.blur(np.clip(image, 0, 1) ** rng.uniform(0.8, 1.25), rng.uniform(0, 0.009))
    image = image + rng.normal(0, rng.uniform(0.004, 0.018), image.shape)
    radius, cut = rng.uniform(0.93, 1.02), rng.choice([1.2, rng.uniform(0.78, 0.92)])
    field = canvas.step(radius - np.hypot(x, y), 0.012) * canvas.step(cut - np.abs(y), 0.012)
    return image * field
