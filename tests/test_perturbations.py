"""The five perturbations against a plain implementation, analysis, and pinned bytes."""

import functools
import io
import itertools

import numpy as np
import pytest
from PIL import Image, features
from scipy import ndimage
from scipy.special import ndtri

from crsbench import perturbations
from crsbench.errors import ConfigError, DataError
from crsbench.perturbations import (
    PERTURBATIONS,
    perturb,
    perturbation_seed,
    perturbed_images,
    pixels_sha256,
)

SEVERITIES = {
    "blur": (1, 2, 4),
    "jpeg": (50, 25, 10),
    "contrast": (0.75, 0.50, 0.25),
    "rician": (0.05, 0.10, 0.20),
    "fov": (0.9, 0.8, 0.7),
}
CONDITIONS = [(name, strength) for name in PERTURBATIONS for strength in SEVERITIES[name]]
SHAPES = [(1, 1), (1, 9), (9, 1), (2, 3), (37, 53), (64, 48), (130, 101)]
SEED = 20_260_822


def picture(height, width):
    """Return a structured colour image, the same on every machine (integers only)."""
    y, x = np.mgrid[:height, :width]
    disc = (2 * x - width) ** 2 + (2 * y - height) ** 2 < (min(height, width) * 3 // 4) ** 2
    red = 40 + (3 * x + y) % 64 + 140 * disc
    green = 30 + (x * y) % 50 + 90 * disc
    blue = 200 - (5 * y) % 100 - 60 * disc
    return np.stack([red, green, blue], axis=2).astype(np.uint8)


def grey(image):
    return np.repeat(image[..., :1], 3, axis=2)


def noise_image(height, width):
    pixels = np.random.Generator(np.random.PCG64(1)).integers(0, 256, (height, width, 3))
    return pixels.astype(np.uint8)


# --- The plain implementation: what the documentation says, in whole-image NumPy ---------------


def plain_kernel(sigma):
    radius = int(4 * sigma + 0.5)
    kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    kernel = np.round(kernel / kernel.sum() * 2**22)
    kernel[radius] += 2**22 - kernel.sum()
    return kernel / 2**22


def plain_blur(image, sigma):
    kernel = plain_kernel(sigma * min(image.shape[:2]) / 224)
    radius = len(kernel) // 2

    def filtered(levels):
        padded = np.pad(levels, ((radius, radius), (0, 0), (0, 0)), mode="symmetric")
        total = np.zeros(levels.shape)
        for tap, weight in enumerate(kernel):
            total += weight * padded[tap : tap + len(levels)]
        return total

    rows = filtered(image.astype(np.float64))
    return np.rint(filtered(rows.transpose(1, 0, 2)).transpose(1, 0, 2)).astype(np.uint8)


def plain_jpeg(image, quality):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality, subsampling="4:2:0")
    return np.array(Image.open(buffer))


def plain_contrast(image, factor):
    mean = image.astype(np.float64).mean()
    return np.clip(np.rint(mean + factor * (image - mean)), 0, 255).astype(np.uint8)


@functools.cache
def plain_normals():
    return np.rint(ndtri((np.arange(65_536) + 0.5) / 65_536) * 2**20) / 2**20


def plain_rician(image, sigma, seed):
    is_grey = bool((image == image[..., :1]).all())
    signal = image[..., :1] if is_grey else image
    codes = np.random.PCG64(seed).random_raw((signal.size + 1) // 2).astype("<u8").view("<u2")
    normals = (plain_normals() * (255 * sigma))[codes[: 2 * signal.size]]
    real, imaginary = normals.reshape(*signal.shape, 2).transpose(3, 0, 1, 2)
    noisy = np.sqrt((signal + real) ** 2 + imaginary**2)
    rounded = np.clip(np.rint(noisy), 0, 255).astype(np.uint8)
    return np.repeat(rounded, 3, axis=2) if is_grey else rounded


def plain_fov(image, fraction):
    def zoom(levels):
        centre = (len(levels) - 1) / 2
        position = centre + (np.arange(len(levels)) - centre) * fraction
        below = np.floor(position).astype(int)
        above = np.minimum(below + 1, len(levels) - 1)
        weight = (np.round((position - below) * 2**22) / 2**22)[:, None, None]
        return levels[below] * (1 - weight) + levels[above] * weight

    rows = zoom(image.astype(np.float64))
    return np.rint(zoom(rows.transpose(1, 0, 2)).transpose(1, 0, 2)).astype(np.uint8)


def plain_perturb(image, perturbation, strength, seed):
    """Return what `perturb` must return, byte by byte."""
    if perturbation == "rician":
        return plain_rician(image, strength, seed)
    plain = {
        "blur": plain_blur,
        "jpeg": plain_jpeg,
        "contrast": plain_contrast,
        "fov": plain_fov,
    }
    return plain[perturbation](image, strength)


# --- Same bytes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("perturbation", "strength"), CONDITIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_equal_the_plain_implementation(perturbation, strength, shape):
    for image in (picture(*shape), noise_image(*shape), grey(picture(*shape))):
        got = perturb(image, perturbation=perturbation, strength=strength, seed=SEED)
        np.testing.assert_array_equal(got, plain_perturb(image, perturbation, strength, SEED))


def test_bytes_equal_the_plain_implementation_over_many_noise_chunks_and_blocks():
    image = picture(301, 257)
    for perturbation, strength in (("rician", 0.1), ("blur", 4), ("fov", 0.7)):
        got = perturb(image, perturbation=perturbation, strength=strength, seed=SEED)
        np.testing.assert_array_equal(got, plain_perturb(image, perturbation, strength, SEED))


@pytest.mark.parametrize("sigma", [0.001, 0.05, 0.2, 1])
def test_noisy_levels_close_to_a_tie_are_rounded_as_in_float64(sigma, monkeypatch):
    random = np.random.Generator(np.random.PCG64(3))
    normals = plain_normals() * (255 * sigma)
    levels, real = random.integers(0, 256, 400_000), random.integers(0, 65_536, 400_000)
    signal = levels + normals[real]
    ties = np.floor(np.abs(signal)) + 0.5 + random.integers(0, 3, signal.size)
    wanted = np.sqrt(np.maximum(ties**2 - signal**2, 0))
    imaginary = np.minimum(np.searchsorted(normals, wanted), 65_535)
    exact = np.hypot(signal, normals[imaginary])
    near = np.flatnonzero((np.abs(exact - ties) < 1e-3) & (exact < 256))[:30_000]
    assert near.size > 1_000
    pairs = np.stack([real, imaginary], axis=1)[near].astype(np.uint16)
    monkeypatch.setattr(perturbations, "_sixteen_bit_pairs", lambda _words, _n: pairs)
    image = np.repeat(levels[near].astype(np.uint8)[None, :, None], 3, axis=2)
    noisy = perturb(image, perturbation="rician", strength=sigma, seed=0)
    noise = normals[pairs]
    expected = np.rint(np.sqrt((levels[near] + noise[:, 0]) ** 2 + noise[:, 1] ** 2))
    np.testing.assert_array_equal(noisy[0, :, 0], np.minimum(expected, 255))


@pytest.mark.parametrize("sigma", SEVERITIES["blur"])
def test_blur_equals_exact_integer_arithmetic(sigma):
    image = noise_image(224, 224)
    image[:, :100] = 255  # the largest sums
    kernel = (plain_kernel(sigma) * 2**22).astype(np.int64)
    radius = len(kernel) // 2
    total = image[..., 0].astype(np.int64)
    for _ in range(2):
        padded = np.pad(total, ((radius, radius), (0, 0)), mode="symmetric")
        taps = [weight * padded[j : j + 224] for j, weight in enumerate(kernel.tolist())]
        total = np.sum(taps, axis=0).T
    whole, rest = total >> 44, total & (2**44 - 1)
    up = (rest > 2**43) | ((rest == 2**43) & (whole % 2 == 1))
    blurred = perturb(image, perturbation="blur", strength=sigma, seed=0)
    np.testing.assert_array_equal(blurred[..., 0], whole + up)


@pytest.mark.parametrize("sigma", SEVERITIES["blur"])
def test_blur_agrees_with_scipys_gaussian_filter(sigma):
    image = picture(112, 160)
    expected = ndimage.gaussian_filter(image.astype(np.float64), (sigma / 2, sigma / 2, 0))
    blurred = perturb(image, perturbation="blur", strength=sigma, seed=0)
    assert np.abs(blurred - expected).max() < 0.51


def test_tie_is_rounded_to_the_even_level():
    image = np.repeat(np.array([[[0], [2]]], dtype=np.uint8), 3, axis=2)  # to 0.5 and 1.5
    halved = perturb(image, perturbation="contrast", strength=0.5, seed=0)
    assert halved[0, :, 0].tolist() == [0, 2]


GOLDEN = {
    ("blur", 1): "68412f77bfd5cdd9633c0387626a53f2613441e99d5b9d495b1f4c335f0cc12e",
    ("blur", 2): "3e9eae570773878c87350d9cac42786404de23d211ce4aa20e10f5010124e0fa",
    ("blur", 3): "b09ab49fc21b9f48390b559f69e300afc11d5e57749e61df532d6d0915dba45f",
    ("jpeg", 1): "3582305f4e4cf4573f0f5931954248282b65c4e9fd78c1c7cfe18f19611ae28f",
    ("jpeg", 2): "d4b252ba35b58160c6658968effaab6452307850bd74140bb2eceaf3a4ac07ec",
    ("jpeg", 3): "c08653d824346c24ad4629229a6e1f61334439c2df8e40547a5b38ff2477db1e",
    ("contrast", 1): "ed1cc653df102f691c6a8542734266155f3dc5fe216ecf125627c3ab4d5dc3b6",
    ("contrast", 2): "a81eed6402edc3650d3773e5a8a937b6e499293427e5c36ce5e3e6e8fda379d6",
    ("contrast", 3): "4d84b6ca4530e5cf5d98cfd2b66e8044a303dcf6a0b4b99763da941d48c1bf50",
    ("rician", 1): "29a527e6600d09d837d1180eea1972d3b4be84369cff8ab6f26299190acd2f77",
    ("rician", 2): "392f581ccd3fc4617ebd6434f015ef24d7d40f210682470f25ebb8141476127c",
    ("rician", 3): "11ba4642df742c334ddf9eedf1d8aa60161ccdf777464ebf73fc7c7c5e4a7f38",
    ("fov", 1): "ba2d9743ca801afcc47332957e66339e915c1163afa0edc772c404f63ebd3978",
    ("fov", 2): "ede755400ab7f054e4326e85a95d3fb9ee7bc49eee2cfe7cd66cc041fe69863b",
    ("fov", 3): "121277dd920bf8bc5cb1bb715e51ff67d10f50c60d552375dfc0a5d0da9a3349",
}
GOLDEN_LIBJPEG_TURBO = "3.2.0"


@pytest.mark.parametrize(("perturbation", "severity"), GOLDEN)
def test_golden_pixels_have_not_changed(perturbation, severity):
    libjpeg = features.version_feature("libjpeg_turbo")
    if perturbation == "jpeg" and libjpeg != GOLDEN_LIBJPEG_TURBO:
        pytest.skip(
            f"JPEG pixels are pinned for libjpeg-turbo {GOLDEN_LIBJPEG_TURBO}, here is {libjpeg}: "
            "manifests made on the two may differ"
        )
    strength = SEVERITIES[perturbation][severity - 1]
    perturbed = perturb(picture(96, 80), perturbation=perturbation, strength=strength, seed=SEED)
    assert pixels_sha256(perturbed) == GOLDEN[perturbation, severity], (
        f"{perturbation} gives other pixels than when it was pinned "
        f"({perturbations.library_versions()})"
    )


# --- What each operator means --------------------------------------------------------------------


@pytest.mark.parametrize("sigma", SEVERITIES["blur"])
@pytest.mark.parametrize("shape", [(224, 224), (112, 260), (450, 448)])
@pytest.mark.parametrize("axis", [0, 1])
def test_blurred_line_is_a_gaussian_whose_sigma_scales_with_the_shorter_side(sigma, shape, axis):
    image = np.zeros((*shape, 3), dtype=np.uint8)
    middle = shape[axis] // 2
    np.moveaxis(image, axis, 0)[middle] = 255
    blurred = perturb(image, perturbation="blur", strength=sigma, seed=0)
    profile = np.moveaxis(blurred, axis, 0)[:, 10, 0]
    scaled = sigma * min(shape) / 224
    density = np.exp(-0.5 * ((np.arange(shape[axis]) - middle) / scaled) ** 2)
    assert np.abs(profile - 255 * density / density.sum()).max() <= 0.52


def test_blur_of_a_single_pixel_and_of_a_constant_image_changes_nothing():
    for image in (picture(1, 1), np.full((40, 30, 3), 255, dtype=np.uint8)):
        np.testing.assert_array_equal(
            perturb(image, perturbation="blur", strength=4, seed=0), image
        )


@pytest.mark.parametrize("factor", SEVERITIES["contrast"])
def test_contrast_keeps_the_mean_and_scales_the_deviation(factor):
    image = noise_image(64, 80)
    lowered = perturb(image, perturbation="contrast", strength=factor, seed=0)
    assert abs(lowered.mean() - image.mean()) < 0.5  # the rounding of equal levels adds up
    assert lowered.std() == pytest.approx(factor * image.std(), rel=5e-3)


@pytest.mark.parametrize("sigma", SEVERITIES["rician"])
def test_noise_without_signal_is_rayleigh(sigma):
    black = np.zeros((512, 512, 3), dtype=np.uint8)
    noisy = perturb(black, perturbation="rician", strength=sigma, seed=SEED)[..., 0] / 255
    standard_error = sigma * np.sqrt((2 - np.pi / 2) / noisy.size)
    assert noisy.mean() == pytest.approx(sigma * np.sqrt(np.pi / 2), abs=4 * standard_error)
    assert noisy.var() == pytest.approx((2 - np.pi / 2) * sigma**2, rel=0.02)


def test_noise_on_a_strong_signal_is_gaussian_about_the_rician_mean():
    sigma, signal = 0.05, 0.5
    level = np.full((512, 512, 3), round(signal * 255), dtype=np.uint8)
    noisy = perturb(level, perturbation="rician", strength=sigma, seed=SEED)[..., 0] / 255
    signal = round(signal * 255) / 255
    assert noisy.mean() == pytest.approx(signal + sigma**2 / (2 * signal), abs=4e-4)
    assert noisy.std() == pytest.approx(sigma, rel=0.01)


def test_noise_is_independent_between_the_channels_of_a_colour_image():
    image = np.full((256, 256, 3), (100, 101, 102), dtype=np.uint8)
    noisy = perturb(image, perturbation="rician", strength=0.1, seed=SEED)
    correlation = np.corrcoef(noisy.reshape(-1, 3).T)
    assert np.abs(correlation - np.eye(3)).max() < 5 / 256


@pytest.mark.parametrize(("perturbation", "strength"), CONDITIONS)
def test_grey_image_stays_grey(perturbation, strength):
    image = grey(picture(120, 140))
    perturbed = perturb(image, perturbation=perturbation, strength=strength, seed=SEED)
    assert np.ptp(perturbed, axis=2).max() == 0
    assert (perturbed != image).any()


@pytest.mark.parametrize("fraction", SEVERITIES["fov"])
def test_field_of_view_enlarges_about_the_centre(fraction):
    ramp = np.broadcast_to(np.arange(201, dtype=np.uint8)[None, :, None], (50, 201, 3))
    seen = perturb(ramp, perturbation="fov", strength=fraction, seed=0)
    expected = 100 + (np.arange(201) - 100) * fraction
    assert np.abs(seen[7, :, 1] - expected).max() <= 0.5 + 1e-6


@pytest.mark.parametrize("fraction", SEVERITIES["fov"])
def test_field_of_view_of_a_constant_image_is_unchanged(fraction):
    image = np.full((33, 44, 3), (255, 3, 128), dtype=np.uint8)
    np.testing.assert_array_equal(
        perturb(image, perturbation="fov", strength=fraction, seed=0), image
    )


@pytest.mark.parametrize("perturbation", ["blur", "contrast", "fov"])
@pytest.mark.parametrize("axis", [0, 1])
def test_mirrored_image_is_perturbed_to_the_mirror_image(perturbation, axis):
    image, strength = picture(61, 80), SEVERITIES[perturbation][1]
    direct = perturb(image, perturbation=perturbation, strength=strength, seed=0)
    mirrored = perturb(np.flip(image, axis), perturbation=perturbation, strength=strength, seed=0)
    np.testing.assert_array_equal(np.flip(mirrored, axis), direct)


@pytest.mark.parametrize("perturbation", PERTURBATIONS)
def test_higher_severity_is_farther_from_the_original(perturbation):
    image = picture(224, 240)
    distances = [
        np.abs(perturb(image, perturbation=perturbation, strength=s, seed=SEED) - image.astype(int))
        for s in SEVERITIES[perturbation]
    ]
    means = [distance.mean() for distance in distances]
    assert 0 < means[0] < means[1] < means[2]


# --- Identity: what the pixels depend on ---------------------------------------------------------


def all_conditions(image, perturbations=PERTURBATIONS, sample="s1"):
    found = perturbed_images(
        image,
        dataset="toy",
        sample=sample,
        perturbations=perturbations,
        severities=SEVERITIES,
    )
    return {(name, severity): (seed, pixels) for name, severity, seed, pixels in found}


def test_all_fifteen_conditions_come_in_order_with_their_seeds():
    image = picture(30, 40)
    found = all_conditions(image)
    assert list(found) == list(itertools.product(PERTURBATIONS, (1, 2, 3)))
    for (name, severity), (seed, pixels) in found.items():
        assert seed == perturbation_seed("toy", "s1", name, severity)
        strength = SEVERITIES[name][severity - 1]
        alone = perturb(image, perturbation=name, strength=strength, seed=seed)
        np.testing.assert_array_equal(pixels, alone)


def test_order_selection_and_global_random_state_do_not_matter():
    image = picture(30, 40)
    everything = all_conditions(image)
    np.random.seed(7)  # noqa: NPY002 -- the global state is what must not matter
    for selection in (PERTURBATIONS[::-1], ("rician",)):
        for condition, (seed, pixels) in all_conditions(image, selection).items():
            assert seed == everything[condition][0]
            np.testing.assert_array_equal(pixels, everything[condition][1])


def test_another_sample_gets_other_noise():
    image = picture(30, 40)
    first, second = (all_conditions(image, ("rician",), sample)["rician", 1][1] for sample in "ab")
    assert (first != second).mean() > 0.5


def test_seed_is_pinned_and_has_64_bits():
    assert perturbation_seed("isic2019", "ISIC_0000000", "rician", 3) == 15_164_924_193_206_644_641
    seeds = [perturbation_seed("d", str(i), "blur", 1) for i in range(200)]
    assert max(seeds) > 2**63
    assert max(seeds) < 2**64


def test_every_part_of_the_identity_changes_the_seed():
    parts = [("a", "b"), ("a", "b", "ab"), ("blur", "fov"), (1, 2, 3)]
    seeds = {perturbation_seed(*identity) for identity in itertools.product(*parts)}
    assert len(seeds) == 2 * 3 * 2 * 3


def test_seed_of_numpy_scalars_equals_that_of_plain_values():
    expected = perturbation_seed("d", "s", "blur", 2)
    assert perturbation_seed(np.str_("d"), np.str_("s"), "blur", np.int64(2)) == expected


@pytest.mark.parametrize(("perturbation", "strength"), CONDITIONS)
def test_memory_layout_does_not_matter_and_the_input_is_left_alone(perturbation, strength):
    image = picture(40, 50)
    before = image.copy()
    wide = np.zeros((80, 100, 3), dtype=np.uint8)
    wide[::2, ::2] = image
    expected = perturb(image, perturbation=perturbation, strength=strength, seed=SEED)
    for same in (np.asfortranarray(image), wide[::2, ::2]):
        got = perturb(same, perturbation=perturbation, strength=strength, seed=SEED)
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(image, before)
    assert expected.flags.writeable
    assert expected.flags.c_contiguous
    assert not np.shares_memory(expected, image)


def test_digest_depends_on_shape_and_pixels_and_not_on_layout():
    image = picture(20, 30)
    assert pixels_sha256(np.asfortranarray(image)) == pixels_sha256(image)
    assert pixels_sha256(image.reshape(30, 20, 3)) != pixels_sha256(image)
    changed = image.copy()
    changed[3, 4, 1] ^= 1
    assert pixels_sha256(changed) != pixels_sha256(image)


# --- Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (picture(4, 5) / 255, r"got float64 of shape \(4, 5, 3\), expected RGB uint8"),
        (picture(4, 5).astype(np.uint16), "got uint16 of shape"),
        (picture(4, 5)[..., 0], r"got uint8 of shape \(4, 5\), expected"),
        (picture(4, 5)[..., :1], r"got uint8 of shape \(4, 5, 1\)"),
        (np.zeros((4, 5, 4), np.uint8), r"got uint8 of shape \(4, 5, 4\)"),
        (np.zeros((0, 5, 3), np.uint8), "with at least one pixel"),
        (Image.new("RGB", (4, 5)), "got Image, expected a uint8 array"),
    ],
    ids=["float", "16 bit", "greyscale", "one channel", "RGBA", "empty", "Pillow image"],
)
def test_anything_but_rgb_uint8_is_refused(image, message):
    with pytest.raises(DataError, match=message):
        perturb(image, perturbation="contrast", strength=0.5, seed=0)
    with pytest.raises(DataError, match=message):
        pixels_sha256(image)


@pytest.mark.parametrize(
    ("perturbation", "strength", "message"),
    [
        ("fog", 1, "'fog' is unknown; expected one of blur, jpeg, contrast, rician, fov"),
        ("blur", 0, "blur: got 0, expected a sigma in px"),
        ("blur", float("nan"), "blur: got nan"),
        ("jpeg", 0, "jpeg: got 0, expected a whole quality from 1 to 100"),
        ("jpeg", 50.5, "jpeg: got 50.5"),
        ("jpeg", float("inf"), "jpeg: got inf"),
        ("contrast", 1.5, "contrast: got 1.5, expected a factor from 0 to 1"),
        ("rician", -0.1, "rician: got -0.1"),
        ("fov", 90, "fov: got 90, expected a fraction of each side from 0.001 to 1"),
    ],
)
def test_unknown_perturbation_and_strength_out_of_range_are_refused(
    perturbation, strength, message
):
    with pytest.raises(ConfigError, match=message):
        perturb(picture(4, 5), perturbation=perturbation, strength=strength, seed=0)
