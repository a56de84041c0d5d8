"""A healthy chest as a radiograph shows it: lungs, vessels, bones, mediastinum, heart.

In the picture the patient's left is on the right: `side` is +1 there and -1 on the other.
"""

from dataclasses import dataclass

import numpy as np

from crsbench.datasets.drawings import canvas
from crsbench.datasets.drawings.canvas import Array

N_RIBS = 9
#: Densities of an inflated lung and of soft tissue.
AIR, SOFT_TISSUE = 0.19, 0.60


@dataclass
class Film:
    """A film in the making.

    `density` (H, W) is how much the body absorbs (bright); `lungs` the masks of the two lungs,
    by side; `outer` (H, W) the distance of the lungs' outer edge from the midline at each row.
    `half_width`, `apex` and `base` say how far the lungs reach out, up and down.
    """

    x: Array
    y: Array
    density: Array
    lungs: dict[int, Array]
    outer: Array
    half_width: float
    apex: float
    base: float

    @property
    def size_px(self) -> int:
        """Return the side of the film."""
        return self.x.shape[0]

    def add(self, mask: Array, amount: float) -> None:
        """Add density where the mask is 1."""
        self.density += mask * amount

    def cloud_over(self, mask: Array, amount: float) -> None:
        """Add density where the mask is 1 and air is left: none over heart or fluid."""
        air = np.clip((SOFT_TISSUE - self.density) / (SOFT_TISSUE - AIR), 0, 1)
        self.density += mask * air * amount

    def fill(self, mask: Array, density: float | Array) -> None:
        """Raise or lower the density to a value where the mask is 1."""
        self.density = canvas.blend(self.density, density, mask)

    def within(
        self,
        rng: np.random.Generator,
        side: int,
        *,
        across: tuple[float, float],
        down: tuple[float, float],
    ) -> Array:
        """Return a random point of a lung; (0, 1) spans it across and down."""
        inner = 0.2
        a = inner + rng.uniform(*across) * (self.half_width - inner)
        return np.array([side * a, self.apex + rng.uniform(*down) * (self.base - self.apex)])


def either(rng: np.random.Generator) -> int:
    """Return one of the two sides."""
    return int(rng.choice([-1, 1]))


def one_or_both(rng: np.random.Generator, *, both: float) -> list[int]:
    """Return both sides with that probability, else one."""
    return [-1, 1] if rng.random() < both else [either(rng)]


def draw_chest(
    patient_rng: np.random.Generator,
    rng: np.random.Generator,
    signs: frozenset[str],
    *,
    size_px: int,
    half_width: tuple[float, float],
    apex: tuple[float, float],
) -> Film:
    """Return the film of a chest with its heart and mediastinum at the size that signs ask.

    Parameters
    ----------
    patient_rng, rng
        What stays the same in all films of a patient is drawn from the first.
    signs
        What the film shows.
    size_px
        Its side.
    half_width, apex
        Ranges of the lungs' outer edge and top.
    """
    film = _thorax(
        patient_rng,
        size_px,
        half_width=patient_rng.uniform(*half_width),
        apex=patient_rng.uniform(*apex),
    )
    _add_vessels(patient_rng, film)
    _add_bones(patient_rng, film)
    heart = patient_rng.uniform(0.88, 1.05) * (1.08 if "AP" in signs else 1.0)
    if "Cardiomegaly" in signs:
        heart *= rng.uniform(1.2, 1.45)
    widest = rng.uniform(0.16, 0.24) if "Enlarged Cardiomediastinum" in signs else 0.10
    _add_mediastinum(patient_rng, film, half_width=widest)
    _add_heart(patient_rng, film, scale=heart)
    return film


def _thorax(rng: np.random.Generator, size_px: int, *, half_width: float, apex: float) -> Film:
    """Return soft tissue with two lungs."""
    x, y = canvas.grid(size_px)
    base = rng.uniform(0.42, 0.60)
    shoulders = -0.95 + 0.5 * np.clip(np.abs(x) - 0.25, 0, None) ** 1.2
    body = canvas.step(y - shoulders, 0.05)
    density = body * (0.52 + 0.025 * canvas.cloud(rng, size_px, cells=3, n_octaves=2))
    rise = np.clip((y - apex) / (0.8 * (base - apex)), 0, 1)
    outer = half_width * np.sqrt(1 - (1 - rise) ** 2.2)
    lungs, floor = {}, {}
    for side in (-1, 1):
        a = side * x
        dome = base + 0.03 * side
        floor[side] = dome + 0.75 * (a - 0.40 * half_width) ** 2
        lungs[side] = (
            canvas.step(outer - a, 0.03)
            * canvas.step(a - 0.06, 0.03)
            * canvas.step(floor[side] - y, 0.025)
        )
    film = Film(x, y, density, lungs, outer, half_width, apex, base)
    air = AIR + 0.02 * canvas.noise(rng, size_px, cells=3) + 0.05 * np.exp(-6 * x**2)
    for lung in lungs.values():
        film.fill(lung, air)
    abdomen = body * canvas.step(y - np.where(x > 0, floor[1], floor[-1]), 0.05)
    film.add(abdomen, 0.08)
    place, radii = [0.38, base + 0.16], rng.uniform([0.08, 0.04], [0.16, 0.08])
    bubble = canvas.ellipses(size_px, place, radii=radii, angles=0.2, softness=0.03)
    film.add(bubble, -0.2 * rng.random())
    return film


def _add_vessels(rng: np.random.Generator, film: Film) -> None:
    """Add the branching vessels of the lungs, from each hilum outwards."""
    paths, widths = [], []
    hila = np.array([[-0.17, -0.06], [0.17, -0.10]])
    film.add(canvas.dots(film.size_px, hila, [0.065, 0.065], softness=0.07), 0.14)
    for side, hilum in zip((-1, 1), hila, strict=True):
        for direction in np.linspace(-1.4, 1.4, 10) + rng.normal(0, 0.1, 10):
            angle = direction if side > 0 else np.pi - direction
            trunk = canvas.walk(rng, start=hilum, angle=angle, length=0.5, wander=0.5)
            paths += [trunk[:6], trunk[5:]]
            widths += [0.026, 0.014]
            for node in (4, 7, 9):
                turn = angle + either(rng) * rng.uniform(0.4, 0.8)
                paths.append(
                    canvas.walk(rng, start=trunk[node], angle=turn, length=0.3, wander=0.5)
                )
                widths.append(0.010)
    marks = canvas.blur(canvas.strokes(film.size_px, paths, widths), 0.011)
    film.add(marks * (film.lungs[-1] + film.lungs[1]), rng.uniform(0.10, 0.15))


def rib_line(film: Film, number: int) -> Array:
    """Return the middle line of a rib (n, 2), on the side +1, from the spine round to the front."""
    top = film.apex + 0.03 + 0.125 * number
    reach = film.half_width * np.sqrt(1 - (1 - min(1.0, 0.30 + 0.16 * number)) ** 2.2) + 0.02
    turn = np.linspace(0, 1, 9)
    behind = np.stack([0.06 + (reach - 0.06) * turn, top + 0.20 * turn**1.6], axis=1)
    front = np.stack([reach - (reach - 0.30) * turn**1.3, top + 0.20 + 0.22 * turn**0.8], axis=1)
    return np.vstack([behind, front[1:]])


def _add_bones(rng: np.random.Generator, film: Film) -> None:
    """Add ribs, clavicles, shoulder blades and spine."""
    behind, front = [], []
    for number in range(N_RIBS):
        for side in (-1, 1):
            rib = rib_line(film, number) * [side, 1]
            behind.append(rib[:10])
            front += [rib[8:]] if number < N_RIBS - 3 else []
    bones = 0.6 * canvas.strokes(film.size_px, behind, [0.052] * len(behind))
    for edge in (-0.024, 0.024):
        rims = [rib + np.array([0, edge]) for rib in behind]
        bones += 0.4 * canvas.strokes(film.size_px, rims, [0.012] * len(rims))
    bones += 0.4 * canvas.strokes(film.size_px, front, [0.05] * len(front))
    film.add(canvas.blur(bones, 0.006), rng.uniform(0.09, 0.15))
    collar = np.array([[0.06, 0.22], [0.25, 0.16], [0.45, 0.13], [0.70, 0.02]])
    collar[:, 1] += film.apex
    blade = np.array([[0.64, -0.6], [0.97, -0.55], [0.84, 0.0]])
    for side in (-1, 1):
        clavicle = canvas.strokes(film.size_px, [collar * [side, 1]], [0.055])
        film.add(canvas.blur(clavicle, 0.008), 0.11)
        film.add(canvas.blur(canvas.polygon(film.size_px, blade * [side, 1]), 0.03), 0.05)
    vertebrae = 0.7 + 0.3 * np.tanh(3 * np.cos(2 * np.pi * film.y / 0.13))
    film.add(canvas.step(0.07 - np.abs(film.x), 0.02) * vertebrae, 0.05)


def _add_mediastinum(rng: np.random.Generator, film: Film, *, half_width: float) -> None:
    """Add the great vessels above the heart, with the aortic knob, and the windpipe's air."""
    flare = half_width * (1 + 0.25 * np.clip((film.y + 0.3) / 0.5, -0.6, 1))
    bulge = flare * (1 + 0.06 * np.sin(7 * film.y + rng.uniform(0, 6)))
    strip = canvas.step(bulge - np.abs(film.x), 0.035) * canvas.step(0.4 - film.y, 0.2)
    place, radii = [half_width * 0.85, -0.30], rng.uniform([0.05, 0.06], [0.075, 0.09])
    knob = canvas.ellipses(film.size_px, place, radii=radii, softness=0.025)
    film.fill(np.maximum(strip, knob) * canvas.step(film.y - film.apex + 0.1, 0.15) * 0.92, 0.56)
    windpipe = canvas.step(0.028 - np.abs(film.x), 0.015) * canvas.step(-0.22 - film.y, 0.05)
    film.add(windpipe, -0.09)


def _add_heart(rng: np.random.Generator, film: Film, *, scale: float) -> None:
    """Add the heart: a tilted oval to the patient's left and the right atrium's bulge."""
    tilt = rng.uniform(0.45, 0.75)
    places = np.array([[0.13, -0.17], [-0.05, -0.17]]) * scale + [0.02, film.base - 0.01]
    radii = np.array([[0.33, 0.23], [0.20, 0.16]]) * scale
    heart = canvas.ellipses(film.size_px, places, radii=radii, angles=[tilt, 1.4], softness=0.03)
    depth = canvas.blur(heart, 0.05)
    film.fill(heart * 0.92, 0.50 + 0.12 * depth + rng.uniform(-0.02, 0.02))
