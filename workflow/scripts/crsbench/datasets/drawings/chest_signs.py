"""The signs of thirteen labels: each adds one finding to the film of a healthy chest."""

from collections.abc import Callable

import numpy as np

from crsbench.datasets.drawings import canvas
from crsbench.datasets.drawings.chest import (
    N_RIBS,
    SOFT_TISSUE,
    Film,
    either,
    one_or_both,
    rib_line,
)


def _haze(rng: np.random.Generator, film: Film) -> None:
    """Add an unspecific veil over a part of one lung."""
    side = either(rng)
    centre = film.within(rng, side, across=(0.3, 0.7), down=(0.25, 0.8))
    radii = rng.uniform(0.18, 0.3, 2)
    veil = canvas.ellipses(film.size_px, centre, radii=radii, softness=0.12)
    film.cloud_over(veil * film.lungs[side], rng.uniform(0.10, 0.18))


def _nodules(rng: np.random.Generator, film: Film) -> None:
    """Add one to four round nodules."""
    for _ in range(int(rng.integers(1, 5))):
        centre = film.within(rng, either(rng), across=(0.2, 0.85), down=(0.2, 0.85))
        radii = rng.uniform(0.05, 0.10) * rng.uniform(0.85, 1.15, 2)
        nodule = canvas.ellipses(film.size_px, centre, radii=radii, softness=0.016)
        film.cloud_over(nodule, rng.uniform(0.26, 0.40))


def _edema(rng: np.random.Generator, film: Film) -> None:
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


def _consolidation(rng: np.random.Generator, film: Film) -> None:
    """Add a dense lobe with a straight fissure edge and dark air bronchograms."""
    side = either(rng)
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


def _pneumonia(rng: np.random.Generator, film: Film) -> None:
    """Add a cluster of fluffy patches in one lung."""
    side = either(rng)
    hub = film.within(rng, side, across=(0.3, 0.7), down=(0.35, 0.9))
    near = np.exp(-((film.x - hub[0]) ** 2 + (film.y - hub[1]) ** 2) / 0.05)
    fluff = canvas.step(canvas.cloud(rng, film.size_px, cells=13) * near, 0.6)
    film.cloud_over(fluff * near * film.lungs[side], rng.uniform(0.36, 0.50))


def _atelectasis(rng: np.random.Generator, film: Film) -> None:
    """Add plate-like bands at a base."""
    for side in one_or_both(rng, both=0.6):
        n_bands = int(rng.integers(2, 5))
        bands = []
        for height in film.base - rng.uniform(0.04, 0.3, n_bands):
            start, end = sorted(rng.uniform(0.2, film.half_width, 2))
            end = max(end, start + 0.25)
            slope = rng.uniform(-0.2, 0.15) * (end - start)
            bands.append(np.array([[side * start, height], [side * end, height + slope]]))
        plates = canvas.strokes(film.size_px, bands, rng.uniform(0.03, 0.05, n_bands))
        film.cloud_over(canvas.blur(plates, 0.010) * film.lungs[side], 0.34)


def _pneumothorax(rng: np.random.Generator, film: Film) -> None:
    """Add air over a collapsed lung: no vessels beyond a thin bright line."""
    side, gap = either(rng), rng.uniform(0.09, 0.22)
    a = side * film.x
    narrowing = gap * np.clip(1 - (film.y - film.apex) / 1.5, 0, 1)
    below_apex = np.clip((film.y - film.apex - 1.5 * gap) / (film.base - film.apex), 0, 1)
    edge = (film.half_width - narrowing) * np.sqrt(1 - (1 - below_apex) ** 3)
    beyond = canvas.step(a - edge, 0.03) * film.lungs[side]
    smooth = canvas.blur(film.density, 0.06) - 0.06
    film.density = canvas.blend(film.density, smooth, beyond * 0.8)
    line = np.exp(-(((a - edge) / 0.012) ** 2)) * (below_apex > 0)
    film.add(line * film.lungs[side], 0.15)


def _effusion(rng: np.random.Generator, film: Film) -> None:
    """Add fluid above the diaphragm, higher at the side wall than at the heart."""
    for side in one_or_both(rng, both=0.45):
        height = rng.uniform(0.12, 0.42)
        climb = np.clip(side * film.x / film.half_width, 0, 1) ** 3
        level = film.base + 0.08 - height - 0.22 * climb
        film.fill(canvas.step(film.y - level, 0.05) * film.lungs[side] * 0.9, SOFT_TISSUE)


def _pleural_plaques(rng: np.random.Generator, film: Film) -> None:
    """Add a lumpy rind along a side wall, with bright calcified plaques."""
    side = either(rng)
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


def _fractures(rng: np.random.Generator, film: Film) -> None:
    """Break two to four neighbouring ribs: a dark gap and a displaced end."""
    side, first = either(rng), int(rng.integers(1, 5))
    node = int(rng.integers(4, 7))
    for number in range(first, min(first + int(rng.integers(2, 5)), N_RIBS)):
        rib = rib_line(film, number) * [side, 1]
        along = rib[node + 1] - rib[node]
        across = np.array([-along[1], along[0]]) / np.hypot(*along) * 0.05
        gap = np.stack([rib[node] - across, rib[node] + across])
        end = rib[node : node + 3] + across * either(rng)
        film.add(canvas.strokes(film.size_px, [gap], [0.024]), -0.14)
        film.add(canvas.blur(canvas.strokes(film.size_px, [end], [0.05]), 0.008), 0.18)


def _devices(rng: np.random.Generator, film: Film) -> None:
    """Add one to three devices."""
    chosen = rng.permutation(len(DEVICES))[: int(rng.integers(1, 4))]
    for number in sorted(chosen):
        DEVICES[number](rng, film)


def _radiodensity(rng: np.random.Generator) -> float:
    return float(rng.uniform(0.08, 0.28))


def _tracheal_tube(rng: np.random.Generator, film: Film) -> None:
    end = np.array([rng.normal(0, 0.01), rng.uniform(-0.32, -0.2)])
    tube = np.array([[rng.normal(0, 0.04), -1.0], [0.01, -0.6], end])
    walls = [tube + np.array([shift, 0]) for shift in (-0.017, 0.017)]
    film.add(canvas.strokes(film.size_px, walls, [0.012] * 2), _radiodensity(rng))


def _central_line(rng: np.random.Generator, film: Film) -> None:
    t = np.linspace(0, 1, 12)[:, None]
    corners = np.array([[-0.75, -0.45], [-0.35, -0.85], [-0.10, -0.55], [-0.11, 0.0]])
    corners = corners + rng.normal(0, 0.03, corners.shape)
    weights = np.hstack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])
    film.add(canvas.strokes(film.size_px, [weights @ corners], [0.016]), _radiodensity(rng))


def _pacemaker(rng: np.random.Generator, film: Film) -> None:
    x0, y0 = rng.uniform(0.45, 0.58), rng.uniform(-0.52, -0.40)
    can = canvas.ellipses(film.size_px, [x0, y0], radii=[0.11, 0.09], angles=0.4)
    film.fill(can, 0.95)
    leads = [
        np.array([[x0, y0], [0.25, -0.58], [0.0, -0.35], [-0.08, 0.0], tip])
        for tip in ([-0.05, 0.12], [0.22, film.base - 0.08])
    ]
    film.add(canvas.strokes(film.size_px, leads, [0.016] * 2), _radiodensity(rng))


def _electrodes(rng: np.random.Generator, film: Film) -> None:
    spots = np.array([[-0.5, -0.45], [0.5, -0.42], [0.55, 0.3]]) + rng.normal(0, 0.06, (3, 2))
    film.add(canvas.dots(film.size_px, spots, [0.035] * 3), _radiodensity(rng))
    leads = [
        canvas.walk(rng, start=spot, angle=rng.uniform(0.5, 2.6), length=1.3, wander=0.8)
        for spot in spots
    ]
    film.add(canvas.strokes(film.size_px, leads, [0.012] * 3), _radiodensity(rng))


def _gastric_tube(rng: np.random.Generator, film: Film) -> None:
    path = np.array([[0.03, -1.0], [0.02, -0.3], [0.04, 0.3], [0.12, 0.62], [0.35, 0.72]])
    path = path + rng.normal(0, 0.012, path.shape)
    film.add(canvas.strokes(film.size_px, [path], [0.018]), _radiodensity(rng))


Sign = Callable[[np.random.Generator, Film], None]
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
