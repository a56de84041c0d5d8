"""The structures inside a lesion, by which its class is told: network, globules, vessels, scale.

Each function returns the image with one kind of mark painted on the lesion.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from crsbench.datasets.drawings import canvas
from crsbench.datasets.drawings.canvas import Array

#: Radius of a lesion in half-widths of the scene.
RADIUS = 0.34
#: How faint a structure is that another class lends, as a range of factors.
BORROWED_CONTRAST = (0.3, 0.9)

PIGMENT = np.array([[0.50, 0.31, 0.20], [0.36, 0.21, 0.15], [0.62, 0.38, 0.33], [0.45, 0.33, 0.30]])
DARK_BROWN = np.array([0.20, 0.11, 0.08])
BLUE_GREY = np.array([0.36, 0.39, 0.47])
VESSEL = np.array([0.64, 0.13, 0.15])
WHITE = np.array([0.93, 0.87, 0.82])


@dataclass(frozen=True)
class Lesion:
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

    def fainter(self) -> "Lesion":
        """Return the same lesion, in which what is painted shows less."""
        return replace(self, contrast=self.contrast * self.rng.uniform(*BORROWED_CONTRAST))


Structure = Callable[[Array, Lesion], Array]


def _network(image: Array, lesion: Lesion) -> Array:
    """Paint a pigment network: a honeycomb of brown lines, fading at the habit."""
    return _with_mesh(image, lesion, where=lesion.mask, bending=0.016)


def _rim_network(image: Array, lesion: Lesion) -> Array:
    """Paint a delicate network on the outer half only."""
    where = lesion.mask * canvas.step(0.55 - lesion.depth, 0.2)
    return _with_mesh(image, lesion, where=where, bending=0.016)


def _broken_network(image: Array, lesion: Lesion) -> Array:
    """Paint a coarse, bent network on a part of the lesion."""
    part = canvas.step(canvas.noise(lesion.rng, lesion.size_px, cells=5), 0.5)
    return _with_mesh(image, lesion, where=lesion.mask * part, bending=0.04)


def _with_mesh(image: Array, lesion: Lesion, *, where: Array, bending: float) -> Array:
    rng = lesion.rng
    x = lesion.x + canvas.cloud(rng, lesion.size_px, cells=8, n_octaves=2) * bending
    y = lesion.y + canvas.cloud(rng, lesion.size_px, cells=8, n_octaves=2) * bending
    turn, wavenumber = rng.uniform(0, np.pi), 2 * np.pi / rng.uniform(0.050, 0.075)
    directions = turn + np.arange(3) * 2 * np.pi / 3
    waves = [np.cos(wavenumber * (x * np.cos(a) + y * np.sin(a))) for a in directions]
    fade = 0.7 + 0.3 * canvas.noise(rng, lesion.size_px, cells=6)
    lines = canvas.step(-0.5 - sum(waves), 0.6) * np.clip(fade, 0, 1)
    return canvas.blend(image, DARK_BROWN, lines * where * 0.85 * lesion.contrast)


def _blotches(image: Array, lesion: Lesion) -> Array:
    """Paint patches of several colours: black-brown, blue-grey veil, red, regression white."""
    for colour in (DARK_BROWN, BLUE_GREY, VESSEL * 0.9, WHITE * 0.85):
        patch = canvas.step(
            canvas.cloud(lesion.rng, lesion.size_px, cells=6, n_octaves=2) - 0.7, 0.35
        )
        image = canvas.blend(image, colour, patch * lesion.mask * 0.75 * lesion.contrast)
    return image


def _streaks(image: Array, lesion: Lesion) -> Array:
    """Paint radial streaks that cross a sector of the habit."""
    sector = lesion.rng.uniform(0, 2 * np.pi)
    angles = sector + lesion.rng.uniform(-1.0, 1.0, 16)
    paths = [
        RADIUS * np.outer([0.7, end], [np.cos(angle), np.sin(angle)])
        for angle, end in zip(angles, lesion.rng.uniform(1.0, 1.25, 16), strict=True)
    ]
    mask = canvas.strokes(lesion.size_px, paths, lesion.rng.uniform(0.010, 0.020, 16))
    return canvas.blend(image, DARK_BROWN, mask * 0.9 * lesion.contrast)


def _globules(image: Array, lesion: Lesion) -> Array:
    """Paint irregular dark globules, crowded on one side."""
    rng = lesion.rng
    n_globules = lesion.number(8, 18)
    centres = lesion.points(n_globules, innermost=0.3) + rng.normal(0, 0.07, 2)
    radii = rng.uniform(0.010, 0.026, n_globules)
    mask = canvas.dots(lesion.size_px, centres, radii)
    return canvas.blend(image, DARK_BROWN, mask * 0.9 * lesion.contrast)


def _tree_vessels(image: Array, lesion: Lesion) -> Array:
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


def _nests(image: Array, lesion: Lesion) -> Array:
    """Paint large blue-grey ovoid nests."""
    centres = lesion.points(lesion.number(3, 6), outermost=0.75)
    return canvas.blend(
        image, BLUE_GREY, _ovals(lesion, centres, 0.035, 0.085, 0.025) * 0.75 * lesion.contrast
    )


def _ovals(
    lesion: Lesion, centres: Array, smallest: float, largest: float, softness: float
) -> Array:
    return canvas.ellipses(
        lesion.size_px,
        centres,
        radii=lesion.rng.uniform(smallest, largest, centres.shape),
        angles=lesion.rng.uniform(0, np.pi, len(centres)),
        softness=softness,
        ragged=canvas.noise(lesion.rng, lesion.size_px, cells=18) * 0.005,
    )


def _follicles(image: Array, lesion: Lesion) -> Array:
    """Paint a strawberry pattern: many white rings, each round a dark plug."""
    centres = _spread(lesion.points(90, outermost=1.05), apart=0.07)
    radii = lesion.rng.uniform(0.018, 0.030, len(centres))
    rings = canvas.dots(lesion.size_px, centres, radii)
    plugs = canvas.dots(lesion.size_px, centres, radii * 0.45)
    image = canvas.blend(image, WHITE, rings * 0.6 * lesion.contrast)
    return canvas.blend(image, DARK_BROWN * 1.8, plugs * 0.8 * lesion.contrast)


def _openings(image: Array, lesion: Lesion) -> Array:
    """Paint comedo-like openings (dark plugs) and milia-like cysts (bright dots)."""
    rng = lesion.rng
    n_plugs, n_cysts = lesion.number(6, 14), lesion.number(6, 14)
    plugs = _ovals(lesion, lesion.points(n_plugs), 0.014, 0.034, 0.012)
    cysts = canvas.dots(lesion.size_px, lesion.points(n_cysts), rng.uniform(0.010, 0.020, n_cysts))
    image = canvas.blend(image, DARK_BROWN, plugs * 0.85 * lesion.contrast)
    return canvas.blend(image, WHITE, cysts * 0.85 * lesion.contrast)


def _ridges(image: Array, lesion: Lesion) -> Array:
    """Paint cerebriform ridges: winding parallel furrows."""
    fold = canvas.noise(lesion.rng, lesion.size_px, cells=7)
    furrows = canvas.step(np.cos(2 * np.pi * fold / 0.75) - 0.55, 0.4)
    return canvas.blend(image, DARK_BROWN * 1.3, furrows * lesion.mask * 0.6 * lesion.contrast)


def _scar(image: Array, lesion: Lesion) -> Array:
    """Paint a central white scar-like patch with ragged edges."""
    ragged = canvas.cloud(lesion.rng, lesion.size_px, cells=10) * 0.12
    patch = canvas.step(lesion.depth - lesion.rng.uniform(0.45, 0.65) + ragged, 0.15)
    return canvas.blend(image, WHITE, patch * 0.85 * lesion.contrast)


def _lacunae(image: Array, lesion: Lesion) -> Array:
    """Paint crowded lacunae, red to violet, parted by pale septa."""
    rng = lesion.rng
    centres = _spread(lesion.points(120, outermost=0.95), apart=0.085)
    lakes = _ovals(lesion, centres, 0.034, 0.060, 0.014)
    colour = VESSEL * rng.uniform(0.6, 0.95) + np.array([0, 0.05, 0.16]) * rng.uniform(0, 1)
    image = canvas.blend(image, WHITE * 0.8, lesion.mask * 0.25 * lesion.contrast)
    return canvas.blend(image, colour, lakes * 0.8 * lesion.contrast)


def _keratin(image: Array, lesion: Lesion) -> Array:
    """Paint a central mass of cracked white-yellow scale."""
    rng = lesion.rng
    ragged = canvas.cloud(rng, lesion.size_px, cells=8) * 0.2
    mass = canvas.step(lesion.depth - rng.uniform(0.4, 0.65) + ragged, 0.06)
    cracks = np.exp(-7 * np.abs(canvas.noise(rng, lesion.size_px, cells=14)))
    image = canvas.blend(image, WHITE * [1, 0.95, 0.78], mass * 0.8 * lesion.contrast)
    return canvas.blend(image, PIGMENT[2], mass * cracks * 0.8 * lesion.contrast)


def _coils(image: Array, lesion: Lesion) -> Array:
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
