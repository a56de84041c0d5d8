"""The index: damage, duplicates, groups and what is left out; the same for any order."""

import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image
from verified import Verified, verify_and_index

from crsbench.datasets.definitions import DatasetDefinition
from crsbench.datasets.duplicates import DUPLICATES_SCHEMA
from crsbench.datasets.indexing import INDEX_SCHEMA, index_metadata
from crsbench.datasets.tables import EXCLUSIONS_SCHEMA, IMAGES_SCHEMA
from crsbench.errors import DataError

CLASSES = ["benign", "malignant"]


def draw(path: Path, *, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def dataset(root: Path, rows: list[tuple[str, str, str, int]], **changes) -> DatasetDefinition:
    """Write rows of id, group, label and the seed that its image is drawn from."""
    root.mkdir(exist_ok=True)
    for name, _, _, seed in rows:
        draw(root / f"{name}.png", seed=seed)
    lines = [f"{name},{name}.png,{group},{label}" for name, group, label, _ in rows]
    (root / "labels.csv").write_text("\n".join(["id,path,group,label", *lines]))
    entry = {
        "name": "clinic",
        "label": "Clinic",
        "adapter": "folder",
        "domain": "dermatology",
        "task": "multiclass",
        "classes": CLASSES,
        "root": root,
    }
    return DatasetDefinition.model_validate(entry | changes)


def index(definition: DatasetDefinition, **changes) -> Verified:
    choices = {
        "conflicting_labels": "drop_conflicting",
        "near_duplicates": 12,
        "verify": "full",
        "threads": 2,
    }
    unusable = definition.root / "unusable.csv"
    return verify_and_index(definition, unusable=unusable, **{**choices, **changes})


TWINS = [
    ("a", "g1", "benign", 1),
    ("b", "g2", "benign", 1),
    ("c", "g2", "malignant", 2),
    ("d", "g3", "malignant", 3),
    ("e", "g4", "benign", 4),
    ("f", "g5", "malignant", 4),
]


def test_tables_have_their_schemas(tmp_path):
    result = index(dataset(tmp_path, TWINS))
    assert result.index.schema == INDEX_SCHEMA
    assert result.exclusions.schema == EXCLUSIONS_SCHEMA
    assert result.images.schema == IMAGES_SCHEMA
    assert result.duplicates.schema == DUPLICATES_SCHEMA


def test_identical_images_share_a_cluster_and_join_their_groups(tmp_path):
    found = index(dataset(tmp_path, TWINS)).index
    assert found.select("sample", "group", "duplicate_cluster").rows() == [
        ("a", "g1", "a"),
        ("b", "g1", "a"),
        ("c", "g1", None),
        ("d", "g3", None),
    ]


def test_groups_are_joined_through_a_chain_of_duplicates(tmp_path):
    rows = [
        ("a", "g9", "benign", 1),
        ("b", "g2", "benign", 1),
        ("c", "g2", "benign", 2),
        ("d", "g1", "benign", 2),
        ("e", "g1", "benign", 3),
        ("f", "g8", "benign", 3),
        ("g", "g8", "benign", 4),
    ]
    found = index(dataset(tmp_path, rows)).index
    assert found["group"].to_list() == ["g1"] * 7


def test_identical_images_with_different_labels_are_all_dropped_and_listed(tmp_path):
    result = index(dataset(tmp_path, TWINS))
    reason = "identical images with different labels (cluster e): "
    assert result.exclusions.rows() == [
        ("e", "e.png", f"{reason}benign"),
        ("f", "f.png", f"{reason}malignant"),
    ]


def test_identical_images_with_different_labels_can_be_kept_in_one_group(tmp_path):
    result = index(dataset(tmp_path, TWINS), conflicting_labels="keep")
    assert result.exclusions.is_empty()
    kept = result.index.filter(pl.col("sample").is_in(["e", "f"]))
    assert kept.select("group", "duplicate_cluster").rows() == [("g4", "e")] * 2


def test_any_difference_between_multilabel_rows_is_a_conflict(tmp_path):
    definition = dataset(tmp_path, [("a", "g", "", 1), ("b", "g", "", 1), ("c", "g", "", 2)])
    (tmp_path / "labels.csv").write_text(
        "id,path,group,edema,fracture\na,a.png,g,1,0\nb,b.png,g,1,-1\nc,c.png,g,0,0\n"
    )
    update = {"task": "multilabel", "classes": ("edema", "fracture")}
    result = index(definition.model_copy(update=update))
    assert result.index["sample"].to_list() == ["c"]
    assert result.exclusions["reason"].str.extract(r"\): (.*)").to_list() == [
        "edema=1",
        "edema=1 fracture=-1",
    ]


def test_files_of_equal_size_that_differ_are_no_duplicates(tmp_path):
    rows = [("a", "g1", "benign", 1), ("b", "g2", "benign", 2)]
    definition = dataset(tmp_path, rows)
    for name, shade in (("a", 10), ("b", 200)):
        Image.new("L", (4, 4), shade).save(tmp_path / f"{name}.bmp")
        (tmp_path / f"{name}.bmp").rename(tmp_path / f"{name}.png")
    result = index(definition)
    assert result.images["bytes"].n_unique() == 1
    assert result.index["duplicate_cluster"].null_count() == 2


def test_the_order_of_rows_and_files_changes_nothing(tmp_path):
    shuffled = TWINS.copy()
    random.Random(0).shuffle(shuffled)
    first = index(dataset(tmp_path / "first", TWINS))
    second = index(dataset(tmp_path / "second", shuffled), threads=4)
    assert first.index.equals(second.index)
    assert first.exclusions.equals(second.exclusions)
    assert first.images.equals(second.images)
    assert first.duplicates.equals(second.duplicates)


def lookalikes(root: Path) -> DatasetDefinition:
    """Write two pictures, and of the first a smaller copy of another patient and another label."""
    rows = [("a", "g2", "benign", 1), ("b", "g1", "malignant", 1), ("c", "g3", "benign", 2)]
    definition = dataset(root, rows)
    for name, _, _, seed in rows:
        noise = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        picture = Image.fromarray(noise).resize((200, 160), Image.Resampling.BICUBIC)
        picture.resize((100, 80) if name == "b" else picture.size).save(root / f"{name}.png")
    return definition


def test_images_that_look_alike_join_their_groups_and_stay_whatever_their_labels(tmp_path):
    result = index(lookalikes(tmp_path))
    assert result.index.select("sample", "group", "duplicate_cluster").rows() == [
        ("a", "g1", "a"),
        ("b", "g1", "a"),
        ("c", "g3", None),
    ]
    assert result.exclusions.is_empty()
    columns = ("sample", "like", "kind", "same_group", "same_labels")
    assert result.duplicates.select(columns).rows() == [("b", "a", "similar", False, False)]


def test_images_that_look_alike_can_be_left_as_they_are(tmp_path):
    found = index(lookalikes(tmp_path), near_duplicates=None)
    assert found.index["group"].to_list() == ["g2", "g1", "g3"]
    assert found.duplicates.is_empty()


def test_images_that_look_alike_are_not_looked_for_without_a_decode_and_the_log_says_so(
    tmp_path, caplog
):
    found = index(lookalikes(tmp_path), verify="size")
    assert found.duplicates.is_empty()
    assert "clinic: images that look alike are not looked for" in caplog.text


def test_an_image_can_look_like_identical_ones(tmp_path):
    definition = lookalikes(tmp_path)
    (tmp_path / "d.png").write_bytes((tmp_path / "a.png").read_bytes())
    with (tmp_path / "labels.csv").open("a") as labels:
        labels.write("\nd,d.png,g4,benign")
    result = index(definition)
    assert result.index["duplicate_cluster"].to_list() == ["a", "a", None, "a"]
    assert result.index["group"].to_list() == ["g1", "g1", "g3", "g1"]
    assert result.duplicates.select("sample", "like", "kind").rows() == [
        ("b", "a", "similar"),
        ("d", "a", "identical"),
    ]


def test_verification_changes_nothing_in_the_index_but_the_digests_of_files(tmp_path):
    definition = dataset(tmp_path, TWINS)
    Image.new("RGB", (9, 9)).save(tmp_path / "c.png")  # the only one of its size
    quick, full = (index(definition, verify=level).index for level in ("size", "full"))
    assert quick.drop("sha256").equals(full.drop("sha256"))
    rivals = quick["sha256"].is_not_null()
    assert quick["sample"].filter(~rivals).to_list() == ["c"]
    assert quick["sha256"].filter(rivals).equals(full["sha256"].filter(rivals))


def test_other_pixels_are_another_index(tmp_path):
    definition = dataset(tmp_path, TWINS)
    before = index(definition).index
    path = definition.root / before["path"][0]
    with Image.open(path) as opened:
        changed = Image.eval(opened, lambda level: 255 - level)
    changed.save(path)
    after = index(definition).index
    assert before["sha256"][0] != after["sha256"][0]
    assert before["sha256"][1:].equals(after["sha256"][1:])


def test_images_report_what_the_decode_saw(tmp_path):
    definition = dataset(tmp_path, TWINS)
    Image.new("CMYK", (5, 4)).save(tmp_path / "d.png", "TIFF")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (5, 4)).save(tmp_path / "c.png", exif=exif)
    seen = index(definition).images.filter(pl.col("note") != "")
    columns = ("sample", "mode", "width_px", "height_px", "note")
    assert seen.select(columns).rows() == [
        ("c", "RGB", 4, 5, "EXIF rotated"),
        ("d", "CMYK", 5, 4, "CMYK converted"),
    ]


def damage(root: Path) -> None:
    (root / "a.png").write_bytes(b"")
    whole = (root / "b.png").read_bytes()
    (root / "b.png").write_bytes(whole[: len(whole) // 2])
    Image.new("RGBA", (4, 4), (1, 2, 3, 100)).save(root / "c.png")
    Image.new("I;16", (4, 4)).save(root / "d.png")


def test_damaged_images_are_an_error_that_lists_all_of_them_and_the_next_step(tmp_path):
    definition = dataset(tmp_path, TWINS)
    damage(tmp_path)
    message = (
        r"clinic: 4 of 6 images in .* cannot be used, 0 because there is no file, 4 because they "
        r"are damaged or refused \(a\.png: zero bytes; .*; and 1 more\)\. .*unusable\.csv lists "
        r"all\. Get or repair them; or accept .*`exclusions:` in the definition of clinic\. "
        r"docs/add-a-dataset\.md says how to flatten translucent images$"
    )
    with pytest.raises(DataError, match=message):
        index(definition)
    listed = pl.read_csv(tmp_path / "unusable.csv")
    assert listed["sample"].to_list() == ["a", "b", "c", "d"]
    for reason, word in zip(listed["reason"], ["zero", "trunc", "transl", "8 bits"], strict=True):
        assert word in reason


def test_the_list_of_damage_can_be_accepted_as_it_is(tmp_path):
    definition = dataset(tmp_path, TWINS)
    damage(tmp_path)
    with pytest.raises(DataError, match="4 of 6 images"):
        index(definition)
    accepted = (tmp_path / "unusable.csv").rename(tmp_path / "accepted.csv")
    result = index(
        definition.model_copy(update={"exclusions": accepted}), conflicting_labels="keep"
    )
    assert result.index["sample"].to_list() == ["e", "f"]
    assert result.exclusions["sample"].sort().to_list() == ["a", "b", "c", "d"]
    assert "accepted: zero bytes" in result.exclusions["reason"].to_list()


def test_a_link_to_an_image_is_an_image_and_a_link_to_nothing_is_none(tmp_path):
    definition = dataset(tmp_path / "data", TWINS)
    (tmp_path / "data" / "c.png").rename(tmp_path / "elsewhere.png")
    (tmp_path / "data" / "c.png").symlink_to(tmp_path / "elsewhere.png")
    assert "c" in index(definition).index["sample"]
    (tmp_path / "elsewhere.png").unlink()
    with pytest.raises(DataError, match=r"1 because there is no file.*c\.png: no such file"):
        index(definition)


def test_two_ids_of_one_file_are_duplicates(tmp_path):
    definition = dataset(tmp_path, TWINS[:3])
    lines = "id,path,group,label\na,a.png,g1,benign\nz,a.png,g2,benign\nc,c.png,g3,benign\n"
    (tmp_path / "labels.csv").write_text(lines)
    found = index(definition).index
    assert found.select("sample", "group", "duplicate_cluster").rows() == [
        ("a", "g1", "a"),
        ("c", "g3", None),
        ("z", "g1", "a"),
    ]


def test_without_a_decode_only_empty_files_are_damaged(tmp_path):
    definition = dataset(tmp_path, TWINS)
    damage(tmp_path)
    with pytest.raises(DataError, match=r"1 of 6 images .*a\.png: zero bytes"):
        index(definition, verify="size")


def test_an_accepted_exclusion_of_no_known_sample_is_an_error(tmp_path):
    accepted = tmp_path / "accepted.csv"
    accepted.write_text("sample,path,reason\nq,q.png,blurred\n")
    definition = dataset(tmp_path, TWINS, exclusions=accepted)
    with pytest.raises(DataError, match=r"accepted\.csv: sample 'q' in row 2 is not among"):
        index(definition)


def test_a_missing_list_of_accepted_exclusions_is_an_error(tmp_path):
    definition = dataset(tmp_path, TWINS, exclusions=tmp_path / "none.csv")
    with pytest.raises(DataError, match=r"clinic: exclusions: .*none\.csv does not exist"):
        index(definition)


def test_an_index_without_any_image_is_an_error(tmp_path):
    rows = [("a", "g1", "benign", 1), ("b", "g2", "malignant", 1)]
    with pytest.raises(DataError, match="no image is left after 2 exclusions"):
        index(dataset(tmp_path, rows))


def test_the_digest_follows_every_part_of_the_index(tmp_path):
    definition = dataset(tmp_path, TWINS)
    found = index(definition).index
    about = index_metadata(definition, found)
    assert about["classes"] == '["benign", "malignant"]'
    assert about == index_metadata(definition, found)
    others = [
        index_metadata(definition, found.head(3)),
        index_metadata(definition.model_copy(update={"classes": ("b", "m")}), found),
        index_metadata(definition.model_copy(update={"name": "other"}), found),
    ]
    digests = {about["index_digest"], *(other["index_digest"] for other in others)}
    assert len(digests) == 4
