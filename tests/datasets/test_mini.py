"""Small real images in the official layouts, with the defects that they really have."""

import io
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image
from verified import Verified, verify_and_index

from crsbench.datasets.definitions import load_definitions
from crsbench.likeness import perceptual_hash

ROOT = Path(__file__).parents[2]
MINI = ROOT / ".." / "shared" / "mini"
SAME_GRADE = [
    {"6248c1ffd198", "1164e92d529d"},
    {"bda4e8db3d99", "2aa2dec86a75"},
    {"1b82c3027122", "2940141a08bb"},
]
OTHER_GRADE = [
    {"d701ec5556d3", "5a9e8945cd11"},
    {"915ad8d8a788", "35a866ab2641"},
    {"6782503e947d", "22c333a652c3"},
]

pytestmark = pytest.mark.skipif(not MINI.is_dir(), reason="no small real images in ../shared/mini")


@cache
def index(name: str, policy: str = "drop_conflicting") -> Verified:
    definitions = load_definitions([ROOT / "config/datasets.yaml"], data_root=MINI, store="results")
    return verify_and_index(
        definitions[name],
        conflicting_labels=policy,
        near_duplicates=12,
        verify="full" if policy == "drop_conflicting" else "size",
        threads=2,
        unusable=Path("unusable.csv"),
    )


def clusters(frame: pl.DataFrame) -> list[set[str]]:
    found = frame.drop_nulls("duplicate_cluster").group_by("duplicate_cluster").agg("sample")
    return [set(samples) for samples in found["sample"]]


@pytest.mark.parametrize(
    ("name", "n_images", "n_excluded"),
    [("isic2019", 659, 0), ("aptos2019", 516, 6), ("chexpert", 1000, 0), ("mimic_cxr", 600, 0)],
)
def test_every_image_is_indexed_or_listed(name, n_images, n_excluded):
    result = index(name)
    assert result.images.height == n_images
    assert result.index.height == n_images - n_excluded
    assert result.exclusions.height == n_excluded


def test_all_six_pairs_of_identical_fundus_images_are_found():
    found = clusters(index("aptos2019", "keep").index)
    assert sorted(map(sorted, found)) == sorted(map(sorted, SAME_GRADE + OTHER_GRADE))


def test_the_three_pairs_with_different_grades_are_dropped_and_listed():
    result = index("aptos2019")
    assert sorted(map(sorted, clusters(result.index))) == sorted(map(sorted, SAME_GRADE))
    assert set(result.exclusions["sample"]) == set().union(*OTHER_GRADE)
    assert result.exclusions["reason"].str.starts_with("identical images with different").all()


def test_identical_radiographs_are_found_within_their_patients():
    assert clusters(index("chexpert").index) == [
        {"train/patient02658/study2/view1_frontal", "train/patient02658/study3/view1_frontal"}
    ]
    pair = index("mimic_cxr").index.drop_nulls("duplicate_cluster")
    assert pair["group"].to_list() == ["11543239", "11543239"]


@pytest.mark.parametrize(
    ("name", "n_pairs"), [("isic2019", 0), ("aptos2019", 6), ("chexpert", 1), ("mimic_cxr", 1)]
)
def test_the_pairs_are_listed_and_no_other_picture_looks_like_one_of_them(name, n_pairs):
    pairs = index(name).duplicates
    assert pairs["kind"].to_list() == ["identical"] * n_pairs
    assert pairs.filter(~pl.col("same_labels"))["sample"].len() == (3 if n_pairs == 6 else 0)


@pytest.mark.parametrize("name", ["isic2019", "aptos2019", "chexpert", "mimic_cxr"])
def test_half_the_size_and_encoded_again_a_picture_is_still_like_itself_and_no_other(name):
    images = index(name).images.filter(pl.col("perceptual_hash").is_unique())
    hashes = np.array([list(bytes.fromhex(digits)) for digits in images["perceptual_hash"]])
    root = load_definitions([ROOT / "config/datasets.yaml"], data_root=MINI)[name].root
    for position in range(0, images.height, 100):
        with Image.open(root / images["path"][position]) as original:
            half = original.convert("RGB").resize([side // 2 for side in original.size])
        buffer = io.BytesIO()
        half.save(buffer, "JPEG", quality=75)
        copy = np.array(list(bytes.fromhex(perceptual_hash(Image.open(buffer)))))
        near = np.unpackbits((hashes ^ copy).astype(np.uint8), axis=1).sum(axis=1) <= 12
        assert np.flatnonzero(near).tolist() == [position]


def test_the_shifted_institution_has_two_findings():
    labels = index("mimic_cxr").index["labels"].list.to_array(14).to_numpy()
    assert labels.sum(axis=0).tolist() == [157, 0, 0, 0, 0, 0, 0, 443, 0, 0, 0, 0, 0, 0]
