"""Brushes: areas, extents and moments that can be computed by hand."""

import numpy as np
import pytest

from crsbench.datasets.drawings import canvas


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def area(mask: np.ndarray) -> float:
    """In half-widths squared: the whole square has 4."""
    return float(mask.mean() * 4)


@pytest.mark.parametrize("size_px", [33, 64, 160])
def test_the_grid_is_centred_and_has_side_2(size_px: int) -> None:
    x, y = canvas.grid(size_px)
    assert x.mean() == pytest.approx(0, abs=1e-12)
    assert x[0, 0] == pytest.approx(-1 + 1 / size_px)
    assert np.array_equal(x, y.T)


@pytest.mark.parametrize("make", [canvas.noise, canvas.cloud])
@pytest.mark.parametrize("size_px", [32, 65, 160])
def test_noise_has_mean_0_and_variance_1(make, size_px, rng) -> None:
    field = make(rng, size_px, cells=6)
    assert field.shape == (size_px, size_px)
    assert field.mean() == pytest.approx(0, abs=1e-9)
    assert field.std() == pytest.approx(1)


def test_more_cells_make_finer_noise(rng) -> None:
    rough, fine = (canvas.noise(rng, 128, cells=cells) for cells in (3, 20))
    assert np.abs(np.diff(fine)).mean() > 3 * np.abs(np.diff(rough)).mean()


def test_a_step_is_one_half_at_the_edge_and_monotone() -> None:
    mask = canvas.step(np.linspace(-1, 1, 201), 0.3)
    assert mask[100] == pytest.approx(0.5)
    assert (mask[0], mask[-1]) == (0, 1)
    assert np.all(np.diff(mask) >= 0)


def test_an_ellipse_has_its_area_at_any_angle() -> None:
    for angle in (0.0, 0.7, np.pi / 2):
        mask = canvas.ellipses(200, [0.1, -0.2], radii=[0.5, 0.3], angles=angle)
        assert area(mask) == pytest.approx(np.pi * 0.5 * 0.3, rel=0.02)


def test_an_ellipse_points_along_its_angle() -> None:
    x, y = canvas.grid(100)
    mask = canvas.ellipses(100, [0, 0], radii=[0.6, 0.1], angles=np.pi / 2)
    assert np.abs(y[mask > 0.5]).max() > 0.55
    assert np.abs(x[mask > 0.5]).max() < 0.15


def test_marks_beyond_the_edge_are_cut_off_or_absent() -> None:
    half = canvas.dots(100, [[1.0, 0.0]], [0.3])
    assert area(half) == pytest.approx(np.pi * 0.09 / 2, rel=0.05)
    assert canvas.dots(100, [[3.0, 0.0]], [0.3]).sum() == 0
    assert canvas.dots(100, np.empty((0, 2)), []).sum() == 0


def test_a_ragged_edge_moves_outwards_where_the_field_is_positive() -> None:
    even = canvas.ellipses(100, [0, 0], radii=[0.4, 0.4])
    wider = canvas.ellipses(100, [0, 0], radii=[0.4, 0.4], ragged=np.full((100, 100), 0.1))
    assert area(wider) == pytest.approx(np.pi * 0.25, rel=0.03)
    assert area(wider) > area(even)


def test_a_stroke_has_length_times_width() -> None:
    mask = canvas.strokes(100, [np.array([[-0.5, 0.0], [0.5, 0.0]])], [0.1])
    assert area(mask) == pytest.approx(0.1, rel=0.1)


def test_a_polygon_has_its_area() -> None:
    mask = canvas.polygon(100, np.array([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]]))
    assert area(mask) == pytest.approx(1, rel=0.03)


def test_a_walk_has_its_length_and_a_straight_one_its_end(rng) -> None:
    path = canvas.walk(rng, start=[0.1, 0.2], angle=0.0, length=0.7, wander=0.0)
    assert path[0] == pytest.approx([0.1, 0.2])
    assert path[-1] == pytest.approx([0.8, 0.2])
    winding = canvas.walk(rng, start=[0, 0], angle=1.0, length=0.7, wander=2.0, bend=1.0)
    assert np.hypot(*np.diff(winding, axis=0).T).sum() == pytest.approx(0.7)


def test_blending_paints_where_the_mask_is_one() -> None:
    image, mask = np.zeros((3, 2, 2)), np.array([[0.0, 1.0], [0.5, 0.0]])
    painted = canvas.blend(image, [1.0, 0.5, 0.0], mask)
    assert painted[:, 0, 1] == pytest.approx([1, 0.5, 0])
    assert painted[:, 1, 0] == pytest.approx([0.5, 0.25, 0])
    assert np.all(painted[:, 0, 0] == 0)


def test_blurring_keeps_the_mean_and_does_not_mix_channels() -> None:
    image = np.zeros((3, 65, 65))
    image[1, 32, 32] = 1
    blurred = canvas.blur(image, 0.1)
    assert blurred[1].sum() == pytest.approx(1, abs=1e-3)
    assert blurred[[0, 2]].sum() == 0


def test_an_image_survives_the_way_to_pillow_and_back(rng) -> None:
    image = rng.integers(0, 256, (3, 4, 5)) / 255
    assert canvas.from_image(canvas.to_image(image)) == pytest.approx(image)
    assert canvas.to_image(np.array([[-1.0, 2.0]])).tobytes() == b"\x00\xff"
