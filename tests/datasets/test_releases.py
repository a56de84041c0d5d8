"""Releases: no secret, no way out of the folder, parts that agree; locks that can be read."""

from pathlib import Path

import pytest
import yaml

from crsbench.datasets.definitions import DatasetDefinition, load_definitions
from crsbench.datasets.locks import WrongFileError, check_file, lock_of, name_below
from crsbench.datasets.releases import RemoteFile
from crsbench.errors import ConfigError, DataError

OFFICIAL = Path(__file__).parents[2] / "config" / "datasets.yaml"


def load(folder: Path, release: dict) -> DatasetDefinition:
    entry = {
        "label": "Mine",
        "adapter": "folder",
        "domain": "dermatology",
        "task": "multiclass",
        "classes": ["benign", "malignant"],
        "release": {"authentication": "none", "redistributable": False} | release,
    }
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"mine": entry}))
    return load_definitions([path], data_root=folder)["mine"]


@pytest.mark.parametrize(
    ("release", "message"),
    [
        ({"files": [{"name": "a", "urls": ["https://h/a?sig=x"]}]}, r"carries a password or a sig"),
        ({"files": [{"name": "a", "urls": ["https://u:p@h/a"]}]}, r"belong into ~/\.netrc"),
        ({"files": [{"name": "../a"}]}, r"'\.\./a' leaves the root of the dataset"),
        ({"files": [{"name": "a", "unpack": ["/etc"]}]}, r"'/etc' leaves the root"),
        ({"files": [{"name": "a", "sha256": "12"}]}, r"files\.0\.sha256: .*pattern"),
        ({"files": [{"name": "a", "digest": "12"}]}, r"files\.0\.digest: unknown key; .*sha256"),
        ({"authentication": "kaggle"}, r"competition: kaggle needs it"),
        ({"competition": "x"}, r"competition: kaggle needs it, and nothing else has it"),
        ({"images": {"base": "b", "names": "n", "digests": "d"}}, r"n and d must be among the"),
        ({"authentication": "password"}, r"authentication: .*'none', 'kaggle', 'physionet'"),
    ],
)
def test_what_a_release_refuses(tmp_path, release, message):
    with pytest.raises(ConfigError, match=rf"dataset mine: .*{message}") as caught:
        load(tmp_path, release)
    assert "sig=x" not in str(caught.value)
    assert "u:p@" not in str(caught.value)


def test_every_official_dataset_states_its_release():
    definitions = load_definitions([OFFICIAL], data_root="data", store="results")
    ways = {name: definition.release.authentication for name, definition in definitions.items()}
    assert ways == {
        "isic2019": "none",
        "aptos2019": "kaggle",
        "chexpert": "manual",
        "mimic_cxr": "physionet",
    }
    shareable = {name for name, item in definitions.items() if item.release.redistributable}
    assert shareable == {"isic2019"}
    assert all(item.licence != "not stated" and item.citation for item in definitions.values())


def test_mirrors_of_isic_are_three_hosts_in_order():
    release = load_definitions([OFFICIAL], data_root="data", store="results")["isic2019"].release
    for file in release.files:
        assert [url.rpartition("/")[2] for url in file.urls] == [file.name] * 3
        assert len({url.rpartition("/")[0] for url in file.urls}) == 3


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"bytes": 4}, r"3 bytes, expected 4 as published"),
        ({"sha256": "0" * 64}, r"SHA-256 ba7816bf\w+, expected 0{64} as published"),
        ({"md5": "0" * 32}, r"MD5 900150983cd24fb0d6963f7d28e17f72, expected 0{32} as published"),
    ],
)
def test_a_file_is_compared_with_what_is_published(tmp_path, stated, message):
    path = tmp_path / "abc"
    path.write_bytes(b"abc")
    lock = lock_of(tmp_path / "data")
    check_file(path, RemoteFile(name="abc", bytes=3), lock)
    with pytest.raises(WrongFileError, match=message):
        check_file(path, RemoteFile(name="abc", **stated), lock)


def test_the_first_digest_of_a_file_stays(tmp_path):
    path = tmp_path / "abc"
    path.write_bytes(b"abc")
    lock = lock_of(tmp_path / "data")
    lock.keep(RemoteFile(name="abc"), path)
    first = lock.digest_of("abc")
    path.write_bytes(b"abd")
    lock.keep(RemoteFile(name="abc"), path)
    assert lock_of(tmp_path / "data").digest_of("abc") == first
    assert lock.placed == {"abc"}


def test_a_lock_that_is_no_json_is_named(tmp_path):
    (tmp_path / "data.lock.json").write_text("{")
    with pytest.raises(DataError, match=r"data\.lock\.json: not JSON: .*; restore the file"):
        lock_of(tmp_path / "data").digest_of("abc")


def test_roots_and_label_files_may_lie_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert lock_of(Path()).path == tmp_path.with_name(f"{tmp_path.name}.lock.json")
    assert name_below(Path("data"), Path("data/a/b.csv")) == "a/b.csv"
    assert name_below(Path("data"), Path("/elsewhere/b.csv")) == "/elsewhere/b.csv"
