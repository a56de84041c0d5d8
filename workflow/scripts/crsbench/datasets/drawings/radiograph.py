"""Radiograph-like phantoms: a frontal chest film with the fourteen CheXpert labels.

Each label has its sign in its place: a wide heart, fluid that fills an angle, the thin line of a
collapsed lung, a broken rib. Build, exposure, rotation and noise vary alike in all films. A
second site draws the same signs in other patients, at other rates, with another scanner.

In the picture the patient's left is on the right: `side` is +1 there and -1 on the other.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from PIL import Image

from crsbench.datasets.drawings import canvas
from crsbench.datasets.drawings.canvas import Array
from crsbench.datasets.drawings.cases import Case, subject_sizes
from crsbench.digests import generator

LABELS = (
    "No Finding",
    "Enlarged Cardiomediastinum",
    "Cardiomegaly",
    "Lung Opacity",
    "Lung Lesion",
    "Edema",
    "Consolidation",
    "Pneumonia",
    "Atelectasis",
    "Pneumothorax",
    "Pleural Effusion",
    "Pleural Other",
    "Fracture",
    "Support Devices",
)
COLUMNS = ("view", *LABELS)
#: A finding that is present makes its parent present.
PARENTS = {
    "Cardiomegaly": "Enlarged Cardiomediastinum",
    "Lung Lesion": "Lung Opacity",
    "Edema": "Lung Opacity",
    "Consolidation": "Lung Opacity",
    "Pneumonia": "Lung Opacity",
    "Atelectasis": "Lung Opacity",
}
#: Findings that a reader is at times uncertain of, and how often: when present, when absent.
UNCERTAIN = frozenset(
    {"Cardiomegaly", "Edema", "Consolidation", "Pneumonia", "Atelectasis", "Pleural Effusion"}
)
UNCERTAIN_PRESENT, UNCERTAIN_ABSENT = 0.15, 0.03
#: An absent finding is left blank this often, and written as 0 otherwise.
BLANK = 0.7
N_RIBS = 9
#: Densities of an inflated lung and of soft tissue.
AIR, SOFT_TISSUE = 0.19, 0.60
STUDIES_PER_PATIENT = (0.5, 0.3, 0.2)
#: A patient's finding is still there in a later study.
PERSISTENCE = 0.75


@dataclass(frozen=True)
class Site:
    """A hospital: its patients' findings and builds, and what its scanner does.

    Parameters
    ----------
    kind
        Name of the kind of phantom.
    healthy
        Share of the patients without a finding.
    prevalence
        Share of the other patients with a sign.
    portable
        Share of the films taken lying (AP).
    half_width, apex
        Ranges of the lungs' outer edge and top.
    contrast, noise, sharpening
        Ranges of the tone curve's slope, of the noise's deviation, and of edge enhancement.
    collimated
        Share of the films with a dark frame.
    """

    kind: str
    healthy: float
    prevalence: Mapping[str, float]
    portable: float
    half_width: tuple[float, float]
    apex: tuple[float, float]
    contrast: tuple[float, float]
    noise: tuple[float, float]
    sharpening: tuple[float, float]
    collimated: float

    def plan(self, n_images: int, seed: int) -> list[Case]:
        """Return the images to draw: patients with one to three studies."""
        rng = generator("phantom", self.kind, seed, "plan")
        cases = []
        for number, n_studies in enumerate(subject_sizes(rng, n_images, STUDIES_PER_PATIENT)):
            patient = f"patient{number:05d}"
            signs = self._signs(rng)
            for study in range(1, n_studies + 1):
                cases.append(self._study(rng, f"{patient}-study{study}", patient, signs))
                signs = self._later(rng, signs)
        return cases

    def draw(self, case: Case, size_px: int, seed: int) -> Image.Image:
        """Return the grey picture of a case."""
        patient_rng, rng = case.randomness(self.kind, seed)
        film = _chest(self, patient_rng, rng, case.signs, size_px)
        for sign in SIGNS:
            if sign in case.signs:
                SIGNS[sign](rng, film)
        return canvas.to_image(_exposed(self, rng, film))

    def _signs(self, rng: np.random.Generator) -> set[str]:
        if rng.random() < self.healthy:
            return set()
        return {sign for sign, share in self.prevalence.items() if rng.random() < share}

    def _later(self, rng: np.random.Generator, signs: set[str]) -> set[str]:
        """Return the signs in the next study: most are still there, a few are new."""
        new = self._signs(rng)
        # Not by iterating over the sets: their order differs from one process to the next.
        return {
            sign
            for sign in self.prevalence
            if sign in (signs if rng.random() < PERSISTENCE else new)
        }

    def _study(self, rng: np.random.Generator, name: str, patient: str, signs: set[str]) -> Case:
        view = "AP" if rng.random() < self.portable else "PA"
        return Case(name, patient, frozenset({*signs, view}), {"view": view, **_labels(rng, signs)})


def _labels(rng: np.random.Generator, signs: set[str]) -> dict[str, str]:
    """Return what the reader wrote: 1, 0, -1 (uncertain) or nothing, by label."""
    present = signs | {PARENTS[sign] for sign in signs & PARENTS.keys()}
    if not present - {"Support Devices"}:
        present = present | {"No Finding"}
    return {label: _cell(rng, label, present=label in present) for label in LABELS}


def _cell(rng: np.random.Generator, label: str, *, present: bool) -> str:
    doubt = (UNCERTAIN_PRESENT if present else UNCERTAIN_ABSENT) * (label in UNCERTAIN)
    draw, blank = rng.random(2)
    if draw < doubt:
        return "-1"
    if present:
        return "1"
    return "" if blank < BLANK else "0"


SITES = (
    Site(
        kind="radiograph",
        healthy=0.18,
        prevalence={
            "Enlarged Cardiomediastinum": 0.14,
            "Cardiomegaly": 0.22,
            "Lung Opacity": 0.10,
            "Lung Lesion": 0.17,
            "Edema": 0.20,
            "Consolidation": 0.16,
            "Pneumonia": 0.16,
            "Atelectasis": 0.20,
            "Pneumothorax": 0.18,
            "Pleural Effusion": 0.30,
            "Pleural Other": 0.15,
            "Fracture": 0.15,
            "Support Devices": 0.50,
        },
        portable=0.5,
        half_width=(0.66, 0.80),
        apex=(-0.80, -0.70),
        contrast=(0.9, 1.25),
        noise=(0.008, 0.030),
        sharpening=(0.0, 0.3),
        collimated=0.1,
    ),
    Site(
        kind="institution",
        healthy=0.10,
        prevalence={
            "Enlarged Cardiomediastinum": 0.20,
            "Cardiomegaly": 0.32,
            "Lung Opacity": 0.14,
            "Lung Lesion": 0.12,
            "Edema": 0.32,
            "Consolidation": 0.14,
            "Pneumonia": 0.22,
            "Atelectasis": 0.30,
            "Pneumothorax": 0.14,
            "Pleural Effusion": 0.42,
            "Pleural Other": 0.12,
            "Fracture": 0.14,
            "Support Devices": 0.65,
        },
        portable=0.85,
        half_width=(0.58, 0.74),
        apex=(-0.74, -0.60),
        contrast=(0.75, 1.05),
        noise=(0.015, 0.040),
        sharpening=(0.3, 0.9),
        collimated=0.5,
    ),
)


@dataclass
class _Film:
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


def _either(rng: np.random.Generator) -> int:
    return int(rng.choice([-1, 1]))


def _one_or_both(rng: np.random.Generator, *, both: float) -> list[int]:
    return [-1, 1] if rng.random() < both else [_either(rng)]


# The healthy chest.


def _chest(
    site: Site,
    patient_rng: np.random.Generator,
    rng: np.random.Generator,
    signs: frozenset[str],
    size_px: int,
) -> _Film:
    """Return the film of a chest with its heart and mediastinum at the size that signs ask."""
    film = _thorax(site, patient_rng, size_px)
    _add_vessels(patient_rng, film)
    _add_bones(patient_rng, film)
    heart = patient_rng.uniform(0.88, 1.05) * (1.08 if "AP" in signs else 1.0)
    if "Cardiomegaly" in signs:
        heart *= rng.uniform(1.2, 1.45)
    widest = rng.uniform(0.16, 0.24) if "Enlarged Cardiomediastinum" in signs else 0.10
    _add_mediastinum(patient_rng, film, half_width=widest)
    _add_heart(patient_rng, film, scale=heart)
    return film


def _thorax(site: Site, rng: np.random.Generator, size_px: int) -> _Film:
    """Return soft tissue with two lungs."""
    x, y = canvas.grid(size_px)
    half_width, apex = rng.uniform(*site.half_width), rng.uniform(*site.apex)
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
    film = _Film(x, y, density, lungs, outer, half_width, apex, base)
    air = AIR + 0.02 * canvas.noise(rng, size_px, cells=3) + 0.05 * np.exp(-6 * x**2)
    for lung in lungs.values():
        film.fill(lung, air)
    abdomen = body * canvas.step(y - np.where(x > 0, floor[1], floor[-1]), 0.05)
    film.add(abdomen, 0.08)
    place, radii = [0.38, base + 0.16], rng.uniform([0.08, 0.04], [0.16, 0.08])
    bubble = canvas.ellipses(size_px, place, radii=radii, angles=0.2, softness=0.03)
    film.add(bubble, -0.2 * rng.random())
    return film


def _add_vessels(rng: np.random.Generator, film: _Film) -> None:
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
                turn = angle + _either(rng) * rng.uniform(0.4, 0.8)
                paths.append(
                    canvas.walk(rng, start=trunk[node], angle=turn, length=0.3, wander=0.5)
                )
                widths.append(0.010)
    marks = canvas.blur(canvas.strokes(film.size_px, paths, widths), 0.011)
    film.add(marks * (film.lungs[-1] + film.lungs[1]), rng.uniform(0.10, 0.15))


def _rib(film: _Film, number: int) -> Array:
    """Return the middle line of a rib (n, 2), on the side +1, from the spine round to the front."""
    top = film.apex + 0.03 + 0.125 * number
    reach = film.half_width * np.sqrt(1 - (1 - min(1.0, 0.30 + 0.16 * number)) ** 2.2) + 0.02
    turn = np.linspace(0, 1, 9)
    behind = np.stack([0.06 + (reach - 0.06) * turn, top + 0.20 * turn**1.6], axis=1)
    front = np.stack([reach - (reach - 0.30) * turn**1.3, top + 0.20 + 0.22 * turn**0.8], axis=1)
    return np.vstack([behind, front[1:]])


def _add_bones(rng: np.random.Generator, film: _Film) -> None:
    """Add ribs, clavicles, shoulder blades and spine."""
    behind, front = [], []
    for number in range(N_RIBS):
        for side in (-1, 1):
            rib = _rib(film, number) * [side, 1]
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


def _add_mediastinum(rng: np.random.Generator, film: _Film, *, half_width: float) -> None:
    """Add the great vessels above the heart, with the aortic knob, and the windpipe's air."""
    flare = half_width * (1 + 0.25 * np.clip((film.y + 0.3) / 0.5, -0.6, 1))
    bulge = flare * (1 + 0.06 * np.sin(7 * film.y + rng.uniform(0, 6)))
    strip = canvas.step(bulge - np.abs(film.x), 0.035) * canvas.step(0.4 - film.y, 0.2)
    place, radii = [half_width * 0.85, -0.30], rng.uniform([0.05, 0.06], [0.075, 0.09])
    knob = canvas.ellipses(film.size_px, place, radii=radii, softness=0.025)
    film.fill(np.maximum(strip, knob) * canvas.step(film.y - film.apex + 0.1, 0.15) * 0.92, 0.56)
    windpipe = canvas.step(0.028 - np.abs(film.x), 0.015) * canvas.step(-0.22 - film.y, 0.05)
    film.add(windpipe, -0.09)


def _add_heart(rng: np.random.Generator, film: _Film, *, scale: float) -> None:
    """Add the heart: a tilted oval to the patient's left and the right atrium's bulge."""
    tilt = rng.uniform(0.45, 0.75)
    places = np.array([[0.13, -0.17], [-0.05, -0.17]]) * scale + [0.02, film.base - 0.01]
    radii = np.array([[0.33, 0.23], [0.20, 0.16]]) * scale
    heart = canvas.ellipses(film.size_px, places, radii=radii, angles=[tilt, 1.4], softness=0.03)
    depth = canvas.blur(heart, 0.05)
    film.fill(heart * 0.92, 0.50 + 0.12 * depth + rng.uniform(-0.02, 0.02))


# Signs: each adds one finding to the film.


def _haze(rng: np.random.Generator, film: _Film) -> None:
    """Add an unspecific veil over a part of one lung."""
    side = _either(rng)
    centre = film.within(rng, side, across=(0.3, 0.7), down=(0.25, 0.8))
    radii = rng.uniform(0.18, 0.3, 2)
    veil = canvas.ellipses(film.size_px, centre, radii=radii, softness=0.12)
    film.cloud_over(veil * film.lungs[side], rng.uniform(0.10, 0.18))


def _nodules(rng: np.random.Generator, film: _Film) -> None:
    """Add one to four round nodules."""
    for _ in range(int(rng.integers(1, 5))):
        centre = film.within(rng, _either(rng), across=(0.2, 0.85), down=(0.2, 0.85))
        radii = rng.uniform(0.05, 0.10) * rng.uniform(0.85, 1.15, 2)
        nodule = canvas.ellipses(film.size_px, centre, radii=radii, softness=0.016)
        film.cloud_over(nodule, rng.uniform(0.26, 0.40))


def _edema(rng: np.random.Generator, film: _Film) -> None:
    """Add haze spreading from both hila, with short septal lines at the lateral bases."""
    grain = 1 + 0.45 * canvas.cloud(rng, film.size_px, cells=14)
    strength = rng.uniform(0.20, 0.32)
    for side in (-1, 1):
        wing = np.exp(-(((side * film.x - 0.25) / 0.2) ** 2 + ((film.y + 0.02) / 0.3) ** 2))
        film.cloud_over(wing * grain * film.lungs[side], strength)
        lines = []
        for height in film.base - rng.uniform(0.02, 0.35, 8):
            end = side * (film.half_width - 0.01)
            lines.append(np.array([[end, height], [end - side * 0.1, height + 0.01]]))
        film.add(canvas.strokes(film.size_px, lines, [0.010] * 8) * film.lungs[side], 0.20)


def _consolidation(rng: np.random.Generator, film: _Film) -> None:
    """Add a dense lobe with a straight fissure edge and dark air bronchograms."""
    side = _either(rng)
    fissure = film.apex + rng.uniform(0.5, 0.7) * (film.base - film.apex)
    lower = rng.random() < 0.6
    tilt = rng.uniform(-0.1, 0.25) * side * film.x
    beyond = (film.y - fissure - tilt) * (1 if lower else -1)
    reach = canvas.step(0.38 - beyond, 0.15)
    lobe = canvas.step(beyond, 0.015) * reach * film.lungs[side]
    hub = np.array([side * 0.2, fissure + (0.1 if lower else -0.1)])
    away = 0.6 if lower else -0.6
    bronchi = [
        canvas.walk(
            rng,
            start=hub,
            angle=turn if side > 0 else np.pi - turn,
            length=rng.uniform(0.25, 0.4),
            wander=0.4,
        )
        for turn in away + np.array([-0.5, -0.1, 0.3])
    ]
    air = canvas.strokes(film.size_px, bronchi, [0.018] * 3)
    film.cloud_over(lobe * (1 - 0.8 * air), rng.uniform(0.24, 0.34))


def _pneumonia(rng: np.random.Generator, film: _Film) -> None:
    """Add a cluster of fluffy patches in one lung."""
    side = _either(rng)
    hub = film.within(rng, side, across=(0.3, 0.7), down=(0.35, 0.9))
    near = np.exp(-((film.x - hub[0]) ** 2 + (film.y - hub[1]) ** 2) / 0.05)
    fluff = canvas.step(canvas.cloud(rng, film.size_px, cells=13) * near, 0.6)
    film.cloud_over(fluff * near * film.lungs[side], rng.uniform(0.36, 0.50))


def _atelectasis(rng: np.random.Generator, film: _Film) -> None:
    """Add plate-like bands at a base."""
    for side in _one_or_both(rng, both=0.6):
        n_bands = int(rng.integers(2, 5))
        bands = []
        for height in film.base - rng.uniform(0.04, 0.3, n_bands):
            start, end = sorted(rng.uniform(0.2, film.half_width, 2))
            end = max(end, start + 0.25)
            slope = rng.uniform(-0.2, 0.15) * (end - start)
            bands.append(np.array([[side * start, height], [side * end, height + slope]]))
        plates = canvas.strokes(film.size_px, bands, rng.uniform(0.03, 0.05, n_bands))
        film.cloud_over(canvas.blur(plates, 0.010) * film.lungs[side], 0.34)


def _pneumothorax(rng: np.random.Generator, film: _Film) -> None:
    """Add air over a collapsed lung: no vessels beyond a thin bright line."""
    side, gap = _either(rng), rng.uniform(0.09, 0.22)
    a = side * film.x
    narrowing = gap * np.clip(1 - (film.y - film.apex) / 1.5, 0, 1)
    below_apex = np.clip((film.y - film.apex - 1.5 * gap) / (film.base - film.apex), 0, 1)
    edge = (film.half_width - narrowing) * np.sqrt(1 - (1 - below_apex) ** 3)
    beyond = canvas.step(a - edge, 0.03) * film.lungs[side]
    smooth = canvas.blur(film.density, 0.06) - 0.06
    film.density = canvas.blend(film.density, smooth, beyond * 0.8)
    line = np.exp(-(((a - edge) / 0.012) ** 2)) * (below_apex > 0)
    film.add(line * film.lungs[side], 0.15)


def _effusion(rng: np.random.Generator, film: _Film) -> None:
    """Add fluid above the diaphragm, higher at the side wall than at the heart."""
    for side in _one_or_both(rng, both=0.45):
        height = rng.uniform(0.12, 0.42)
        climb = np.clip(side * film.x / film.half_width, 0, 1) ** 3
        level = film.base + 0.08 - height - 0.22 * climb
        film.fill(canvas.step(film.y - level, 0.05) * film.lungs[side] * 0.9, SOFT_TISSUE)


def _pleural_plaques(rng: np.random.Generator, film: _Film) -> None:
    """Add a lumpy rind along a side wall, with bright calcified plaques."""
    side = _either(rng)
    depth = film.outer - side * film.x
    lumps = 0.045 + 0.022 * canvas.noise(rng, film.size_px, cells=9)
    stretch = canvas.step(film.y - rng.uniform(-0.5, -0.2), 0.05)
    rind = canvas.step(lumps - depth, 0.01) * stretch * film.lungs[side]
    film.add(rind, 0.26)
    where = [film.within(rng, side, across=(0.35, 0.9), down=(0.3, 0.9)) for _ in range(3)]
    for centre in where:
        radii = [rng.uniform(0.05, 0.09), 0.02]
        angle = rng.uniform(0, np.pi)
        film.add(canvas.ellipses(film.size_px, centre, radii=radii, angles=angle), 0.24)


def _fractures(rng: np.random.Generator, film: _Film) -> None:
    """Break two to four neighbouring ribs: a dark gap and a displaced end."""
    side, first = _either(rng), int(rng.integers(1, 5))
    node = int(rng.integers(4, 7))
    for number in range(first, min(first + int(rng.integers(2, 5)), N_RIBS)):
        rib = _rib(film, number) * [side, 1]
        along = rib[node + 1] - rib[node]
        across = np.array([-along[1], along[0]]) / np.hypot(*along) * 0.05
        gap = np.stack([rib[node] - across, rib[node] + across])
        end = rib[node : node + 3] + across * _either(rng)
        film.add(canvas.strokes(film.size_px, [gap], [0.024]), -0.14)
        film.add(canvas.blur(canvas.strokes(film.size_px, [end], [0.05]), 0.008), 0.18)


def _devices(rng: np.random.Generator, film: _Film) -> None:
    """Add one to three devices."""
    chosen = rng.permutation(len(DEVICES))[: int(rng.integers(1, 4))]
    for number in sorted(chosen):
        DEVICES[number](rng, film)


def _radiodensity(rng: np.random.Generator) -> float:
    return float(rng.uniform(0.08, 0.28))


def _tracheal_tube(rng: np.random.Generator, film: _Film) -> None:
    end = np.array([rng.normal(0, 0.01), rng.uniform(-0.32, -0.2)])
    tube = np.array([[rng.normal(0, 0.04), -1.0], [0.01, -0.6], end])
    walls = [tube + np.array([shift, 0]) for shift in (-0.017, 0.017)]
    film.add(canvas.strokes(film.size_px, walls, [0.012] * 2), _radiodensity(rng))


def _central_line(rng: np.random.Generator, film: _Film) -> None:
    t = np.linspace(0, 1, 12)[:, None]
    corners = np.array([[-0.75, -0.45], [-0.35, -0.85], [-0.10, -0.55], [-0.11, 0.0]])
    corners = corners + rng.normal(0, 0.03, corners.shape)
    weights = np.hstack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])
    film.add(canvas.strokes(film.size_px, [weights @ corners], [0.016]), _radiodensity(rng))


def _pacemaker(rng: np.random.Generator, film: _Film) -> None:
    x0, y0 = rng.uniform(0.45, 0.58), rng.uniform(-0.52, -0.40)
    can = canvas.ellipses(film.size_px, [x0, y0], radii=[0.11, 0.09], angles=0.4)
    film.fill(can, 0.95)
    leads = [
        np.array([[x0, y0], [0.25, -0.58], [0.0, -0.35], [-0.08, 0.0], tip])
        for tip in ([-0.05, 0.12], [0.22, film.base - 0.08])
    ]
    film.add(canvas.strokes(film.size_px, leads, [0.016] * 2), _radiodensity(rng))


def _electrodes(rng: np.random.Generator, film: _Film) -> None:
    spots = np.array([[-0.5, -0.45], [0.5, -0.42], [0.55, 0.3]]) + rng.normal(0, 0.06, (3, 2))
    film.add(canvas.dots(film.size_px, spots, [0.035] * 3), _radiodensity(rng))
    leads = [
        canvas.walk(rng, start=spot, angle=rng.uniform(0.5, 2.6), length=1.3, wander=0.8)
        for spot in spots
    ]
    film.add(canvas.strokes(film.size_px, leads, [0.012] * 3), _radiodensity(rng))


def _gastric_tube(rng: np.random.Generator, film: _Film) -> None:
    path = np.array([[0.03, -1.0], [0.02, -0.3], [0.04, 0.3], [0.12, 0.62], [0.35, 0.72]])
    path = path + rng.normal(0, 0.012, path.shape)
    film.add(canvas.strokes(film.size_px, [path], [0.018]), _radiodensity(rng))


Sign = Callable[[np.random.Generator, _Film], None]
DEVICES: tuple[Sign, ...] = (
    _tracheal_tube,
    _central_line,
    _pacemaker,
    _electrodes,
    _gastric_tube,
)
SIGNS: dict[str, Sign] = {
    "Pneumothorax": _pneumothorax,
    "Lung Opacity": _haze,
    "Lung Lesion": _nodules,
    "Edema": _edema,
    "Consolidation": _consolidation,
    "Pneumonia": _pneumonia,
    "Atelectasis": _atelectasis,
    "Pleural Effusion": _effusion,
    "Pleural Other": _pleural_plaques,
    "Fracture": _fractures,
    "Support Devices": _devices,
}


# The exposure.


def _exposed(site: Site, rng: np.random.Generator, film: _Film) -> Array:
    """Return the film as the scanner shows it (H, W): placed, toned, with its noise."""
    image = _placed(rng, film.density)
    image = image + rng.uniform(*site.sharpening) * (image - canvas.blur(image, 0.03))
    level = rng.uniform(-0.10, 0.10)
    image = (image - 0.42) * rng.uniform(*site.contrast) * 1.25 + 0.45 + level
    image = canvas.blur(image, rng.uniform(0, 0.008))
    image = image + rng.normal(0, rng.uniform(*site.noise), image.shape)
    if rng.random() < site.collimated:
        edges = rng.uniform(0.82, 0.97, 4)
        x, y = film.x, film.y
        inside = np.minimum.reduce([edges[0] - x, edges[1] + x, edges[2] - y, edges[3] + y])
        image = image * canvas.step(inside, 0.01)
    return image


def _placed(rng: np.random.Generator, density: Array) -> Array:
    """Return the film turned, shifted and scaled a little, as patients stand or lie."""
    size_px = density.shape[0]
    margin = size_px // 5
    turn, scale = rng.normal(0, 0.045), rng.uniform(0.90, 1.05)
    c, s = scale * np.cos(turn), scale * np.sin(turn)
    half = size_px / 2
    dx, dy = margin + half * (1 + rng.normal(0, 0.04, 2))
    coefficients = (c, -s, dx - c * half + s * half, s, c, dy - s * half - c * half)
    film = Image.fromarray(np.pad(density, margin, mode="edge").astype(np.float32))
    moved = film.transform(
        (size_px, size_px), Image.Transform.AFFINE, coefficients, Image.Resampling.BICUBIC
    )
    return np.asarray(moved, dtype=np.float64)
