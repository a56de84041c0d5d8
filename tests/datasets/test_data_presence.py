"""Whether data are here: every state, what to do, and never a look at an image or the network."""

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from crsbench.datasets.definitions import DatasetDefinition, load_definitions
from crsbench.datasets.presence import absent_parts, find_data
from crsbench.datasets.releases import RemoteFile

OFFICIAL = Path(__file__).parents[2] / "config" / "datasets.yaml"
TRUTH, LESIONS = "ISIC_2019_Training_GroundTruth.csv", "ISIC_2019_Training_Metadata.csv"
pytestmark = pytest.mark.usefixtures("no_sockets")


def official(name: str, data_root: Path, **release: object) -> DatasetDefinition:
    definition = load_definitions([OFFICIAL], data_root=data_root, store="results")[name]
    changed = definition.release.model_copy(update=release)
    return definition.model_copy(update={"release": changed})


def state_of(definition: DatasetDefinition) -> str:
    return find_data(definition, offline=False).state


@pytest.fixture
def isic(tmp_path) -> DatasetDefinition:
    """The layout of ISIC 2019, with an empty folder of images."""
    definition = official("isic2019", tmp_path)
    (definition.root / "ISIC_2019_Training_Input").mkdir(parents=True)
    for name in (TRUTH, LESIONS):
        (definition.root / name).write_text("image\n")
    return definition


@pytest.mark.parametrize(
    ("name", "page", "then"),
    [
        ("aptos2019", "https://www.kaggle.com/competitions/aptos2019-blindness-detection",
         "the run itself fetches it"),
        ("chexpert",
         "https://stanfordaimi.azurewebsites.net/datasets/8cbd9ed4-2eb9-4565-affc-111cf4f7ebe2",
         "put the files there"),
        ("mimic_cxr", "https://physionet.org/content/mimic-cxr-jpg/2.1.0/",
         "the run itself fetches it"),
    ],
)  # fmt: skip
def test_what_is_bound_to_an_account_is_gated_with_its_page(name, page, then, tmp_path):
    definition = official(name, tmp_path)
    found = find_data(definition, offline=False)
    assert found.state == "gated"
    assert found.advice.startswith(f"its folder {definition.root} does not exist; ")
    assert f"; ask for access at {page} if you have none yet, then {then}; " in found.advice
    assert "\n" not in found.advice


def test_what_anybody_may_fetch_is_fetched_by_the_run_unless_it_is_offline(tmp_path):
    definition = official("isic2019", tmp_path)
    assert state_of(definition) == "missing, fetched by the run"
    offline = find_data(definition, offline=True)
    assert offline.state == "missing"
    assert offline.advice.endswith(
        "`snakemake --until acquire` fetches it where there is a network"
    )


def test_what_is_all_there_is_present(isic):
    assert find_data(isic, offline=True).state == "present"


def test_labels_without_the_folder_of_images_are_not_enough(isic):
    (isic.root / "ISIC_2019_Training_Input").rmdir()
    found = find_data(isic, offline=False)
    assert found.state == "missing, fetched by the run"
    assert found.advice.startswith(f"ISIC_2019_Training_Input not found in {isic.root}; ")


def test_labels_that_may_be_used_as_they_are_suffice_without_an_account(tmp_path):
    definition = official("mimic_cxr", tmp_path)
    definition.root.mkdir()
    for kind in ("metadata", "split", "chexpert"):
        (definition.root / f"mimic-cxr-2.0.0-{kind}.csv.gz").write_bytes(gzip.compress(b""))
    assert state_of(definition) == "present"


def test_a_file_that_has_changed_since_it_was_locked_is_a_mismatch(isic):
    text = (isic.root / TRUTH).read_bytes()
    entry = {"bytes": 6, "sha256": hashlib.sha256(text).hexdigest(), "placed": [TRUTH]}
    lock = isic.root.with_name("isic2019.lock.json")
    lock.write_text(json.dumps({TRUTH: entry}))
    assert state_of(isic) == "present"
    (isic.root / TRUTH).write_text("other\n")
    found = find_data(isic, offline=False)
    assert found.state == "digest mismatch"
    assert found.advice.startswith(f"{isic.root / TRUTH}: SHA-256 ")
    assert f"as first seen ({lock}; " in found.advice


def test_a_mismatch_is_told_before_the_rest_is_fetched(tmp_path):
    definition = official("aptos2019", tmp_path)
    definition.root.mkdir()
    (definition.root / "train.csv").write_text("id_code,diagnosis\n")
    found = find_data(definition, offline=False)
    assert found.state == "digest mismatch"
    assert "as published; get the file of release 2019" in found.advice


def test_no_image_is_read(isic):
    (isic.root / "ISIC_2019_Training_Input" / "ISIC_0.jpg").mkdir()  # whoever reads it fails
    assert state_of(isic) == "present"


@pytest.mark.parametrize("name", ["isic2019", "chexpert"])
def test_what_cannot_be_told_apart_or_read_is_damaged(name, tmp_path):
    definition = official(name, tmp_path)
    if name == "chexpert":
        for folder in (definition.root, definition.root / "CheXpert-v1.0"):
            folder.mkdir()
            (folder / "train.csv").touch()
    else:
        definition.root.mkdir()
        for label_file in (TRUTH, LESIONS):
            (definition.root / label_file).touch()
        definition.root.with_name("isic2019.lock.json").write_text("{")
    found = find_data(definition, offline=False)
    assert found.state == "damaged"
    assert ("stands in" if name == "chexpert" else "not JSON") in found.advice


def test_a_dataset_of_a_users_own_is_missing_with_its_access(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(
        "clinic: {label: Clinic, adapter: folder, domain: skin, task: multiclass, "
        "classes: [a, b], access: Ask the study office.}\n"
    )
    definition = load_definitions([own], data_root=tmp_path)["clinic"]
    found = find_data(definition, offline=False)
    assert found.state == "missing"
    assert found.advice == (
        f"its folder {tmp_path / 'clinic'} does not exist; Ask the study office; if it is "
        "elsewhere, set data_root or its root"
    )


def test_a_manual_release_that_may_be_passed_on_is_not_gated(tmp_path):
    definition = official("chexpert", tmp_path, redistributable=True)
    assert state_of(definition) == "missing"


def test_a_file_counts_as_there_packed_or_not(tmp_path):
    table = RemoteFile(name="labels.csv.gz")
    archive = RemoteFile(name="all.zip", unpack=("images", "labels.csv"))
    assert absent_parts(tmp_path, table) == ["labels.csv.gz"]
    assert absent_parts(tmp_path, archive) == ["images", "labels.csv"]
    (tmp_path / "labels.csv").touch()
    assert absent_parts(tmp_path, table) == []
    assert absent_parts(tmp_path, archive) == ["images"]
