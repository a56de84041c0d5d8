"""Verification: how closely each level looks, and what becomes of what it finds."""

import hashlib
from pathlib import Path

import polars as pl
import pytest
from PIL import Image

from crsbench.datasets import verification
from crsbench.datasets.definitions import DatasetDefinition, load_adapter
from crsbench.datasets.releases import read_digests
from crsbench.datasets.tables import IMAGES_SCHEMA
from crsbench.datasets.verification import describe_images, verify_images
from crsbench.errors import DataError

N = 12


@pytest.fixture
def definition(tmp_path) -> DatasetDefinition:
    root = tmp_path / "clinic"
    root.mkdir()
    for number in range(N):  # every size of file is there once
        image = Image.new("RGB", (5 + 40 * number, 7), (number, 0, 0))
        image.save(root / f"{number}.png", compress_level=0)
    rows = [f"s{number},{number}.png,g,benign" for number in range(N)]
    (root / "labels.csv").write_text("\n".join(["id,path,group,label", *rows]))
    assert len({path.stat().st_size for path in root.glob("*.png")}) == N
    return DatasetDefinition(
        name="clinic",
        label="Clinic",
        adapter="folder",
        domain="dermatology",
        task="multiclass",
        classes=("benign", "malignant"),
        root=root,
    )


def verify(definition: DatasetDefinition, level: str, *, threads: int = 2) -> pl.DataFrame:
    return verify_images(
        load_adapter(definition).read_listing(definition),
        definition,
        verify=level,
        threads=threads,
        unusable=definition.root / "unusable.csv",
    )


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def test_full_decodes_and_digests_every_image(definition):
    images = verify(definition, "full")
    assert images.schema == IMAGES_SCHEMA
    assert (images["decoded"] == "yes").all()
    row = images.row(by_predicate=pl.col("sample") == "s3", named=True)
    raw = (definition.root / "3.png").read_bytes()
    assert row == {
        "sample": "s3",
        "path": "3.png",
        "bytes": len(raw),
        "sha256": hashlib.sha256(raw).hexdigest(),
        "mode": "RGB",
        "width_px": 125,
        "height_px": 7,
        "perceptual_hash": None,  # of one shade
        "decoded": "yes",
        "note": "",
    }


def test_a_sample_is_the_same_every_time_and_of_the_stated_size(definition, monkeypatch):
    monkeypatch.setattr(verification, "SAMPLE_SIZE", 5)
    first, second = (verify(definition, "sample", threads=n) for n in (1, 3))
    assert first.equals(second)
    decoded = first.filter(decoded="yes")
    assert decoded.height == decoded["sha256"].count() == 5
    rest = first.filter(pl.col("decoded") != "yes")
    assert set(rest["decoded"]) == {"not decoded"}
    assert rest["sha256"].null_count() == N - 5
    other = definition.model_copy(update={"name": "ward"})
    assert not verify(other, "sample").equals(first)


def test_a_sample_of_a_small_dataset_is_all_of_it(definition):
    assert verify(definition, "sample").equals(verify(definition, "full"))


def test_size_decodes_nothing_and_misses_damage_that_full_finds(definition):
    truncate(definition.root / "3.png")
    images = verify(definition, "size")
    assert set(images["decoded"]) == {"not decoded"}
    with pytest.raises(DataError, match=r"1 of 12 images .* \(3\.png: damaged or truncated"):
        verify(definition, "full")


def test_identical_files_are_digested_at_every_level(definition):
    (definition.root / "4.png").write_bytes((definition.root / "3.png").read_bytes())
    digested = verify(definition, "size").drop_nulls("sha256")
    assert digested["sample"].to_list() == ["s3", "s4"]
    assert digested["sha256"].n_unique() == 1


def test_damage_is_accepted_by_the_file_that_the_error_names_and_stays_in_the_table(definition):
    truncate(definition.root / "3.png")
    (definition.root / "5.png").unlink()
    with pytest.raises(DataError, match=r"2 of 12 .* 1 because there is no file, .*unusable\.csv"):
        verify(definition, "full")
    accepted = (definition.root / "unusable.csv").rename(definition.root / "accepted.csv")
    images = verify(definition.model_copy(update={"exclusions": accepted}), "full")
    why = dict(images.select("sample", "decoded").filter(pl.col("decoded") != "yes").rows())
    assert why["s5"] == "accepted: no such file"
    assert why["s3"].startswith("accepted: damaged or truncated")
    assert images.height == N
    truncate(definition.root / "7.png")
    with pytest.raises(DataError, match=r"1 of 10 images .* \(7\.png: "):
        verify(definition.model_copy(update={"exclusions": accepted}), "full")


def test_images_without_a_label_are_in_the_table_too(definition):
    Image.new("RGB", (3, 3)).save(definition.root / "stray.png")
    (stray,) = verify(definition, "full").filter(pl.col("sample").is_null()).rows(named=True)
    assert (stray["path"], stray["decoded"]) == ("stray.png", "no label")


def test_an_image_that_is_not_the_published_one_is_a_fault(definition):
    sums = definition.root / "SHA256SUMS.txt"
    lines = [
        f"{hashlib.sha256((definition.root / f'{n}.png').read_bytes()).hexdigest()}  {n}.png"
        for n in range(N)
    ]
    sums.write_text("\n".join(lines))
    release = {
        "authentication": "manual",
        "redistributable": False,
        "files": [{"name": "names"}, {"name": "SHA256SUMS.txt"}],
        "images": {"base": "https://h/", "names": "names", "digests": "SHA256SUMS.txt"},
    }
    released = DatasetDefinition.model_validate(
        definition.model_dump(exclude_unset=True) | {"release": release}
    )
    verify(released, "full")
    Image.new("RGB", (9, 9)).save(definition.root / "2.png")
    with pytest.raises(DataError, match=r"2\.png: SHA-256 \w{64}, expected \w{64} as published"):
        verify(released, "full")


@pytest.mark.parametrize(
    "line", [f"{'a' * 64} *d/x.jpg", f"{'A' * 64}  ./d/x.jpg", f"{'a' * 64} d/x.jpg"]
)
def test_lists_of_digests_are_read_in_their_common_forms(tmp_path, line):
    (tmp_path / "sums").write_text(f"{line}\n\n")
    assert read_digests(tmp_path / "sums") == {"d/x.jpg": "a" * 64}


def test_a_list_of_something_else_is_an_error_with_its_line(tmp_path):
    (tmp_path / "sums").write_text(f"{'a' * 64}  x.jpg\n<html>\n")
    with pytest.raises(DataError, match=r"sums: line 2 is '<html>', expected a SHA-256 and a path"):
        read_digests(tmp_path / "sums")


def test_the_summary_counts_what_was_seen(definition):
    Image.new("L", (300, 300)).save(definition.root / "stray.png")
    Image.new("L", (31, 31)).save(definition.root / "2.png")
    images = verify(definition, "full")
    assert describe_images(images, verify="full") == {
        "level": "full",
        "labelled": N,
        "decoded": N,
        "digested": N,
        "bytes": sum(path.stat().st_size for path in definition.root.glob("*.png")),
        "modes": {"L": 1, "RGB": N - 1},
        "losses accepted": 0,
        "without label": 1,
    }
