"""Verdicts: what a release states against what its files hold."""

import hashlib
import json
import logging
from pathlib import Path

import polars as pl
import pytest

from crsbench.datasets.definitions import DatasetDefinition, load_adapter, load_definitions
from crsbench.datasets.verdicts import judge, label_digest, settle
from crsbench.errors import DataError

OFFICIAL = Path(__file__).parents[2] / "config" / "datasets.yaml"
GRADES = ["a,0", "b,2", "c,2"]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def definition(tmp_path) -> DatasetDefinition:
    """The APTOS layout with three images, and a release that states them."""
    official = load_definitions([OFFICIAL], data_root=tmp_path, store="results")["aptos2019"]
    official.root.mkdir()
    table = "id_code,diagnosis\n" + "".join(f"{line}\n" for line in reversed(GRADES))
    (official.root / "train.csv").write_text(table)
    release = official.release.model_dump() | {
        "files": [{"name": "train.csv", "sha256": sha256(table), "rows": 3}],
        "expected": {
            "images": 3,
            "classes": {"no DR": 1, "mild": 0, "moderate": 2},
            "label_digest": sha256("a,0\nb,2\nc,2"),
        },
    }
    return DatasetDefinition.model_validate(
        official.model_dump(exclude_unset=True) | {"release": release}
    )


def verdict_of(definition: DatasetDefinition):
    return judge(definition, load_adapter(definition).read_listing(definition))


def test_the_stated_release_is_found_as_such(definition, caplog):
    verdict = verdict_of(definition)
    settle(verdict, unlike_release="error")
    assert verdict.summary == "as released"
    assert caplog.text == ""
    record = verdict.as_record()
    assert record["facts"]["class moderate"] == {"expected": 2, "found": 2}
    assert record["facts"]["rows of train.csv"] == {"expected": 3, "found": 3}
    assert record == json.loads(json.dumps(record))


def test_another_label_is_named_by_count_digest_and_file(definition):
    path = definition.root / "train.csv"
    path.write_text(path.read_text().replace("b,2", "b,1"))
    verdict = verdict_of(definition)
    message = (
        r"aptos2019: 4 of 7 facts about its files are not those of release 2019: label digest: "
        r"\w{64}, expected \w{64}; class mild: 1, expected 0; class moderate: 1, expected 2; and 1 "
        r"more\. Get the files of that release; or, where others are meant, set unlike_release=warn"
    )
    with pytest.raises(DataError, match=message):
        settle(verdict, unlike_release="error")
    assert verdict.summary == "unlike the release"
    found = verdict.as_record()["facts"]["train.csv"]["found"]
    assert found.startswith(f"{path}: SHA-256 ")


def test_differences_can_be_a_warning(definition, caplog):
    (definition.root / "train.csv").write_text("id_code,diagnosis\na,0\n")
    with caplog.at_level(logging.WARNING):
        settle(verdict_of(definition), unlike_release="warn")
    assert "images: 1, expected 3" in caplog.text


def test_a_file_that_has_changed_since_it_was_fetched_is_named(definition):
    remote = definition.release.files[0].model_copy(update={"sha256": None, "rows": None})
    release = definition.release.model_copy(update={"files": (remote,)})
    definition = definition.model_copy(update={"release": release})
    lock = definition.root.with_name("aptos2019.lock.json")
    entry = {"train.csv": {"bytes": 1, "sha256": "0" * 64, "placed": ["train.csv"]}}
    lock.write_text(json.dumps(entry))
    with pytest.raises(DataError, match=r"train\.csv: .*SHA-256 \w+, expected 0{64} as first seen"):
        settle(verdict_of(definition), unlike_release="error")


def test_rows_are_counted_in_a_file_that_was_released_packed_and_is_unpacked(definition):
    remote = definition.release.files[0].model_copy(update={"name": "train.csv.gz"})
    release = definition.release.model_copy(update={"files": (remote,)})
    verdict = verdict_of(definition.model_copy(update={"release": release}))
    assert verdict.found["rows of train.csv.gz"] == 3
    assert "train.csv.gz" not in verdict.expected  # its digest is that of the packed file


def test_without_a_release_what_was_found_is_reported_all_the_same(definition):
    verdict = verdict_of(definition.model_copy(update={"release": None}))
    settle(verdict, unlike_release="error")
    assert verdict.summary == "no release stated"
    assert verdict.as_record()["facts"]["images"] == {"expected": None, "found": 3}


def test_the_label_digest_is_that_of_sorted_lines_by_name_number_or_finding(definition):
    samples = pl.DataFrame(
        {"sample": ["b", "a"], "group": ["b", "g"], "labels": [[1], [0]]},
        schema_overrides={"labels": pl.List(pl.Int8)},
    )
    named = definition.model_copy(update={"task": "multiclass", "classes": ("x", "y")})
    assert label_digest(named, samples) == sha256("a,x\nb,y")
    assert label_digest(definition, samples) == sha256("a,0\nb,1")
    findings = samples.with_columns(labels=pl.Series([[0, -1], [1, 0]], dtype=pl.List(pl.Int8)))
    several = definition.model_copy(update={"task": "multilabel", "classes": ("x", "y")})
    assert label_digest(several, findings) == sha256("a,1,0\nb,0,-1")


def test_findings_are_counted_by_source_of_labels(tmp_path):
    definition = load_definitions([OFFICIAL], data_root=tmp_path, store="results")["chexpert"]
    definition.root.mkdir()
    names = ",".join(definition.classes)
    head = f"Path,Sex,Age,Frontal/Lateral,AP/PA,{names}\n"
    row = "CheXpert-v1.0/{}/patient{}/study1/view1_frontal.jpg,F,1,Frontal,{},{}\n"
    uncertain = ",".join(["-1.0"] * 14)
    positive = ",".join(["1.0"] * 14)
    (definition.root / "train.csv").write_text(
        head
        + row.format("train", "00001", "AP", uncertain)
        + row.format("train", "00002", "LL", positive)
    )
    (definition.root / "valid.csv").write_text(head + row.format("valid", "64541", "PA", positive))
    found = verdict_of(definition).found
    assert found["images"] == 3
    assert (found["view AP"], found["view LL"], found["view PA"]) == (1, 1, 1)
    assert (found["label source nlp"], found["label source radiologist"]) == (2, 1)
    assert (found["Edema positive (nlp)"], found["Edema uncertain (nlp)"]) == (1, 1)
    assert (found["Edema positive (radiologist)"], found["rows of train.csv"]) == (1, 2)


@pytest.mark.parametrize("name", ["isic2019", "aptos2019", "chexpert"])
def test_the_counts_of_the_official_releases_agree_with_each_other(name, tmp_path):
    release = load_definitions([OFFICIAL], data_root=tmp_path, store="results")[name].release
    expected = release.expected
    for counts in (expected.classes, expected.views, expected.label_sources):
        assert sum(counts.values()) in (0, expected.images)
    definition = load_definitions([OFFICIAL], data_root=tmp_path, store="results")[name]
    assert set(expected.classes) <= set(definition.classes)
    assert all(set(counts) == set(definition.classes) for counts in expected.findings.values())
