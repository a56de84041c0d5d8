"""Radiograph-like phantoms: a frontal chest film with the fourteen CheXpert labels.

Each label has its sign in its place: a wide heart, fluid that fills an angle, the thin line of a
collapsed lung, a broken rib. Build, exposure, rotation and noise vary alike in all films. A
second site draws the same signs in other patients, at other rates, with another scanner.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from PIL import Image

from crsbench.datasets.drawings import canvas
from crsbench.datasets.drawings.canvas import Array
from crsbench.datasets.drawings.cases import Case, subject_sizes
from crsbench.datasets.drawings.chest import Film, draw_chest
from crsbench.datasets.drawings.chest_signs import SIGNS
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
        film = draw_chest(
            patient_rng,
            rng,
            case.signs,
            size_px=size_px,
            half_width=self.half_width,
            apex=self.apex,
        )
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


def _exposed(site: Site, rng: np.random.Generator, film: Film) -> Array:
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
