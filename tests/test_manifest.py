"""The perturbation manifest: a row for every condition, and what does not match it is refused."""

import numpy as np
import polars as pl
import pytest
from PIL import Image

from crsbench.errors import DataError
from crsbench.images import canonical_image
from crsbench.manifest import (
    MANIFEST,
    check_pixels,
    expected_pixels,
    manifest_rows,
    perturbation_manifest,
)
from crsbench.perturbations import perturbation_seed, perturbed_images, pixels_sha256

SEVERITIES = {"blur": (1.0, 4.0), "contrast": (0.5,)}
CONDITIONS = [("blur", 1), ("blur", 2), ("contrast", 1)]
JPEG_2 = {"dataset": "toy", "sample": "s1", "perturbation": "jpeg", "severity": 2}


def picture(seed=0):
    return np.random.default_rng(seed).integers(0, 256, (20, 30, 3), dtype=np.uint8)


@pytest.fixture
def root(tmp_path):
    for place in range(3):
        Image.fromarray(picture(place)).save(tmp_path / f"{place}.png")
    return tmp_path


def manifest_of(root, *, threads=1, dataset="toy"):
    names = ["2", "0", "1"]
    return perturbation_manifest(
        pl.DataFrame({"sample": names, "path": [f"{name}.png" for name in names]}),
        dataset=dataset,
        root=root,
        perturbations=list(SEVERITIES),
        severities=SEVERITIES,
        max_side_px=100,
        threads=threads,
    )


def test_rows_hold_seed_and_digest_of_every_condition():
    about = {"dataset": "toy", "sample": "s1", "perturbations": list(SEVERITIES)}
    rows = manifest_rows(picture(), **about, severities=SEVERITIES)
    made = perturbed_images(picture(), **about, severities=SEVERITIES)
    for row, (perturbation, severity, _, pixels) in zip(rows, made, strict=True):
        assert row == {
            "sample": "s1",
            "perturbation": perturbation,
            "severity": severity,
            "seed": perturbation_seed("toy", "s1", perturbation, severity),
            "pixels_sha256": pixels_sha256(pixels),
        }


def test_a_manifest_has_the_images_in_their_order_each_under_all_conditions(root):
    manifest = manifest_of(root)
    assert manifest.schema == MANIFEST
    keys = manifest.select("sample", "perturbation", "severity").rows()
    assert keys == [(name, *condition) for name in "201" for condition in CONDITIONS]
    decoded = canonical_image(root / "0.png", max_side_px=100)
    about = {"dataset": "toy", "sample": "0", "perturbations": list(SEVERITIES)}
    expected = manifest_rows(decoded, **about, severities=SEVERITIES)
    assert manifest.filter(sample="0").rows(named=True) == expected


def test_the_number_of_threads_changes_nothing_and_the_dataset_every_seed(root):
    one = manifest_of(root)
    assert manifest_of(root, threads=3).equals(one)
    assert not set(manifest_of(root, dataset="other")["seed"]) & set(one["seed"])


def test_the_digest_of_every_image_and_condition_is_expected(root):
    manifest = manifest_of(root)
    expected = expected_pixels(manifest, severities=SEVERITIES)
    assert list(expected.values()) == manifest["pixels_sha256"].to_list()
    assert expected["0", "blur", 2] == manifest.row(4, named=True)["pixels_sha256"]


@pytest.mark.parametrize(
    ("change", "severities", "message"),
    [
        (lambda m: m[:-1], SEVERITIES, r"has no row for \('1', 'contrast', 1\); make it again"),
        (lambda m: pl.concat([m, m[:1]]), SEVERITIES, "has a repeated row"),
        (lambda m: m, {**SEVERITIES, "contrast": (0.5, 0.25)}, "the configuration makes"),
        (lambda m: m, {**SEVERITIES, "blur": (1.0,)}, "the configuration makes"),
    ],
    ids=["hole", "repeated", "more severities", "fewer severities"],
)
def test_a_manifest_that_does_not_fit_is_refused(root, change, severities, message):
    with pytest.raises(DataError, match=message):
        expected_pixels(change(manifest_of(root)), severities=severities)


def test_pixels_that_match_the_manifest_pass():
    check_pixels(picture(), pixels_sha256(picture()), **JPEG_2)


def test_a_mismatch_names_image_condition_and_library_versions():
    message = (
        r"toy/s1, jpeg severity 2: .*numpy \d.*, scipy \d.*, Pillow \d.*, libjpeg.* \d.*make the "
    )
    with pytest.raises(DataError, match=message):
        check_pixels(picture(), pixels_sha256(picture()[::-1]), **JPEG_2)
