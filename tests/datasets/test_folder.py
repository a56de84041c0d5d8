"""A dataset of one's own, and every kind of bad input that a label file can be."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image
from verified import Verified, verify_and_index

from crsbench.datasets.definitions import DatasetDefinition
from crsbench.datasets.folder import read_listing
from crsbench.datasets.indexing import index_metadata
from crsbench.errors import DataError
from crsbench.files import write_parquet
from crsbench.sides import Labels, read_targets

HEADER = ["id", "path", "group", "label"]
ROWS = [
    ["a", "images/a.png", "g1", "benign"],
    ["b", "images/b.png", "g1", "malignant"],
    ["c", "images/c.png", "g2", "benign"],
]


def dataset(
    root: Path,
    *,
    rows: Sequence[Sequence[str]] = ROWS,
    header: Sequence[str] = HEADER,
    raw: bytes | None = None,
    **changes: Any,
) -> DatasetDefinition:
    """Write labels and distinct images below `root` and return the definition."""
    (root / "images").mkdir(exist_ok=True)
    for shade, name in enumerate("abc"):
        Image.new("RGB", (4 + shade, 4)).save(root / "images" / f"{name}.png")
    text = "\n".join(",".join(row) for row in [header, *rows]) + "\n"
    (root / "labels.csv").write_bytes(text.encode() if raw is None else raw)
    entry = {
        "name": "clinic",
        "label": "Clinic",
        "adapter": "folder",
        "domain": "dermatology",
        "task": "multiclass",
        "classes": ["benign", "malignant"],
        "root": root,
    }
    return DatasetDefinition.model_validate(entry | changes)


def index(definition: DatasetDefinition) -> Verified:
    return verify_and_index(
        definition,
        conflicting_labels="drop_conflicting",
        near_duplicates=12,
        verify="full",
        threads=1,
        unusable=definition.root / "unusable.csv",
    )


def test_a_folder_and_a_csv_become_an_index(tmp_path):
    result = index(dataset(tmp_path))
    assert result.index.select("sample", "group", "labels").rows() == [
        ("a", "g1", [0]),
        ("b", "g1", [1]),
        ("c", "g2", [0]),
    ]
    assert result.index["path"].to_list() == ["images/a.png", "images/b.png", "images/c.png"]
    assert result.exclusions.is_empty()


def test_columns_can_have_other_names(tmp_path):
    definition = dataset(
        tmp_path,
        header=["image", "file", "eye", "grade", "camera", "site"],
        rows=[["a", "./images/a.png", "left", "malignant", "front", "north"]],
        columns={
            "id": "image", "path": "file", "label": "grade", "group": None,
            "view": "camera", "source": "site",
        },
    )  # fmt: skip
    listing = read_listing(definition)
    assert listing.samples.rows() == [("a", "images/a.png", "a", [1], "front", "north", None)]


def test_multilabel_columns_are_named_like_the_classes(tmp_path):
    definition = dataset(
        tmp_path,
        header=["edema", "id", "path", "group", "fracture"],
        rows=[["1.0", "a", "images/a.png", "g", ""], ["-1", "b", "images/b.png", "", "0"]],
        task="multilabel",
        classes=["fracture", "edema"],
    )
    listing = read_listing(definition).samples.sort("sample")
    assert listing["labels"].to_list() == [[0, 1], [0, -1]]
    assert listing["group"].to_list() == ["g", "b"]


@pytest.mark.parametrize(
    "raw",
    [
        b"\xef\xbb\xbf" + b"id,path,group,label\na,images/a.png,g1,benign\n",
        b"id,path,group,label\r\na,images/a.png,g1,benign\r\n",
        b"id,path,group,label\na,images/a.png,g1,benign",
        b'label,"group",extra,path,id\nbenign,g1,x,images/a.png,a\n',
    ],
    ids=["byte-order mark", "CRLF", "no last line end", "permuted, quoted, surplus columns"],
)
def test_the_form_of_the_csv_does_not_matter(tmp_path, raw):
    samples = read_listing(dataset(tmp_path, raw=raw)).samples
    assert samples.rows() == [("a", "images/a.png", "g1", [0], None, None, None)]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", r"labels\.csv: the file is empty"),
        (b"\xef\xbb\xbf", r"labels\.csv: the file is empty"),
        (b"id,path,group,label\n", r"labels\.csv: a header and no rows"),
        (b"id,path,group,label\na,b\xe9,g,benign\n", r"labels\.csv: not a readable UTF-8 CSV"),
        (b"id,path,group,label\na,b,g,benign,surplus\n", r"labels\.csv: not a readable UTF-8 CSV"),
        (
            b"id,path,lesion,label\na,b,g,benign\n",
            r"labels\.csv: no column 'group'; found 'id', 'path', 'lesion', 'label'; name the colu"
            r"mn that holds it as `columns\.group` in the definition of clinic, or write `group: n",
        ),
        (b"id,path,group,label,id\na,b,g,benign,a\n", r"column 'id' stands there twice"),
        (
            b"id,path,group,label\na,b,g,benign\nc,d,g,unsure\n",
            r"unknown labels in 1 rows, first in row 3 .*label='unsure'.*expected one of benign, m",
        ),
        (b"id,path,group,label\na,b,g,\n", r"unknown labels .*row 2 .*label=None"),
        (
            b"id,path,group\na,b,g\n",
            r"no column 'label'; .*; name the column that holds it as `columns\.label` in the def",
        ),
        (
            b"id;path;group;label\na;b;g,h;benign\n",
            r"labels\.csv: semicolons separate the columns \('id;path;group;label'\), expected c",
        ),
        (b"id\tpath\tgroup\tlabel\r\na\tb\tg\tbenign\r\n", r"tabs separate .*label'\), expected"),
        (b"id,path,group,label\na,,g,benign\n", r"labels\.csv: path is blank in row 2; write it"),
        (b"id,path,group,label\n,b,g,benign\n", r"labels\.csv: sample is blank in row 2"),
        (
            b"id,path,group,label\na,x,g,benign\nb,y,g,benign\na,x,g,malignant\n",
            r"1 sample with contradictory rows, such as 'a' in rows 2, 4; correct the file",
        ),
        (b"id,path,group,label\na,x,g,benign\na,x,h,benign\n", r"contradictory rows, such as 'a'"),
    ],
)
def test_a_wrong_label_file_is_an_error_that_names_it_and_the_row(tmp_path, raw, message):
    with pytest.raises(DataError, match=message):
        index(dataset(tmp_path, raw=raw))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"columns": {"id": "image"}},
            r"no column 'image'.* as `columns\.id` in the def.* clinic$",
        ),
        ({"columns": {"view": "camera"}}, r"as `columns\.view` in .*, or leave that key out$"),
        (
            {"task": "multilabel", "classes": ["label", "edema"]},
            r"'edema'.*or `classes` in the def",
        ),
    ],
)
def test_a_column_that_is_not_there_is_an_error_with_the_key_and_the_ways_out(
    tmp_path, changes, message
):
    with pytest.raises(DataError, match=message):
        read_listing(dataset(tmp_path, **changes))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("{root}/images/b.png", r"row 3 is an absolute path, .*: write 'images/b\.png' there"),
        (
            "/elsewhere/b.png",
            r"an absolute path, '/elsewhere/b\.png'; .*write the part below the ro",
        ),
        (r"C:\images\b.png", r"row 3 is an absolute path, 'C:"),
        (
            "images/../b.png",
            r"row 3 is a path with '\.\.', 'images/\.\./b\.png'; expected paths rel",
        ),
    ],
)
def test_a_path_that_is_not_relative_to_the_root_is_an_error_that_says_what_to_write(
    tmp_path, path, message
):
    rows = [ROWS[0], ["b", path.format(root=tmp_path), "g1", "benign"]]
    with pytest.raises(DataError, match=message):
        read_listing(dataset(tmp_path, rows=rows))


def test_a_name_with_a_colon_or_dots_is_a_path_like_any(tmp_path):
    rows = [["a", "a:1..png", "g1", "benign"]]
    assert read_listing(dataset(tmp_path, rows=rows)).samples["path"].to_list() == ["a:1..png"]


def test_a_finding_can_only_be_1_0_minus_1_or_blank(tmp_path):
    definition = dataset(
        tmp_path,
        header=["id", "path", "group", "edema"],
        rows=[["a", "images/a.png", "g", "2"]],
        task="multilabel",
        classes=["edema"],
    )
    with pytest.raises(DataError, match=r"row 2 .*edema='2'.*expected 1, 0, -1"):
        read_listing(definition)


def test_a_repeated_row_is_kept_once_and_listed(tmp_path):
    result = index(dataset(tmp_path, rows=[*ROWS, ROWS[0]]))
    assert result.index.height == 3
    assert result.exclusions.rows() == [("a", "images/a.png", "repeated row")]


def test_rows_without_a_file_are_an_error_that_counts_and_names_them(tmp_path):
    rows = [*ROWS, *([name, f"images/{name}.png", "g", "benign"] for name in "wxyz")]
    with pytest.raises(DataError, match=r"4 of 7 images .* 4 because there is no file, 0 because "):
        index(dataset(tmp_path, rows=rows))
    listed = pl.read_csv(tmp_path / "unusable.csv")
    assert listed.rows() == [(name, f"images/{name}.png", "no such file") for name in "wxyz"]


def test_where_all_files_are_missing_the_column_and_the_root_are_asked_about(tmp_path):
    rows = [[name, f"{name}.png", "g", "benign"] for name in "abc"]
    message = (
        rf"3 of 3 images .*Paths are relative to {tmp_path}: {tmp_path}/a\.png was looked for\. "
        r"Is 'path' right as `columns\.path`, and the folder right as `root`\?$"
    )
    with pytest.raises(DataError, match=message):
        index(dataset(tmp_path, rows=rows))


def test_where_some_files_are_missing_the_first_is_named_in_full_and_may_be_accepted(tmp_path):
    rows = [*ROWS, ["d", "d.png", "g", "benign"]]
    with pytest.raises(DataError, match=rf"{tmp_path}/d\.png was looked for\. Get .*accept"):
        index(dataset(tmp_path, rows=rows))


def test_a_file_that_is_there_but_no_image_by_its_name_is_not_called_missing(tmp_path):
    (tmp_path / "d.dcm").write_bytes(b"DICM")
    rows = [*ROWS, ["d", "d.dcm", "g", "benign"]]
    with pytest.raises(
        DataError, match=r"0 because there is no file, .*d\.dcm: no image by its na"
    ):
        index(dataset(tmp_path, rows=rows))


def test_a_file_without_a_row_is_listed_and_no_error(tmp_path):
    result = index(dataset(tmp_path, rows=ROWS[:2]))
    assert result.index["sample"].to_list() == ["a", "b"]
    assert result.exclusions.rows() == [(None, "images/c.png", "no label")]


def test_a_missing_folder_or_csv_is_an_error_that_says_how_to_get_the_data(tmp_path):
    definition = dataset(tmp_path, access="Ask the clinic.")
    (tmp_path / "labels.csv").unlink()
    with pytest.raises(DataError, match=r"labels\.csv not found; get the data.*\nAsk the clinic\."):
        index(definition)
    elsewhere = definition.model_copy(update={"root": tmp_path / "none"})
    with pytest.raises(DataError, match=r"its folder .*none does not exist.*\nAsk the clinic\."):
        index(elsewhere)


def test_a_folder_can_be_the_shift_target_of_another_dataset_with_classes_by_name(tmp_path):
    header = ["id", "path", "group", "edema", "fracture", "effusion"]
    source = dataset(
        tmp_path,
        header=header,
        rows=[["a", "images/a.png", "g", "1", "0", "-1"]],
        task="multilabel",
        classes=["effusion", "fracture", "edema"],
    )
    (tmp_path / "there").mkdir()
    there = dataset(
        tmp_path / "there",
        header=header,
        rows=[["b", "images/b.png", "g", "1", "", "-1"], ["c", "images/c.png", "g", "", "1", "1"]],
        task="multilabel",
        classes=["edema", "effusion"],
        name="there",
        shift_of="clinic",
    )
    for definition in (source, there):
        table = index(definition).index
        metadata = index_metadata(definition, table)
        write_parquet(table, definition.root / "index.parquet", metadata=metadata)
    labels = Labels.read(source.root / "index.parquet", uncertain="ones")
    target = read_targets({"there": there.root / "index.parquet"}, labels=labels)["there"]
    assert target.samples == ["b", "c"]
    nan = float("nan")
    np.testing.assert_array_equal(target.truth, [[1, nan, 1], [1, nan, 0]])
