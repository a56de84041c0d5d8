"""Label tables: columns by name, values as allowed, errors with file and row."""

import gzip
from pathlib import Path

import polars as pl
import pytest

from crsbench.datasets.tables import (
    EXCLUSIONS_SCHEMA,
    ROW,
    class_labels,
    counted,
    excluded,
    finding_labels,
    labelled,
    one_hot_labels,
    read_table,
    without_repeats,
)
from crsbench.errors import DataError

FILE = Path("labels.csv")


def write(folder: Path, raw: bytes, name: str = "labels.csv") -> Path:
    path = folder / name
    path.write_bytes(raw)
    return path


def table(**columns: list[str | None]) -> pl.DataFrame:
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String)).with_row_index(ROW, 2)


def test_a_packed_csv_is_read(tmp_path):
    path = write(tmp_path, gzip.compress(b"id\na\n"), "labels.csv.gz")
    assert read_table(path, required=["id"]).rows() == [(2, "a")]


def test_columns_come_in_the_order_asked_for_and_as_text(tmp_path):
    path = write(tmp_path, b"c,a,b\n1,01,\n2.50,x,y\n")
    read = read_table(path, required=["a", "b"], optional=["d", "c"])
    assert read.columns == [ROW, "a", "b", "c"]
    assert read.rows() == [(2, "01", None, "1"), (3, "x", "y", "2.50")]


def test_a_quoted_blank_is_blank_like_an_empty_cell(tmp_path):
    path = write(tmp_path, b'a,b\n"",1\n,2\n')
    assert read_table(path, required=["a"])["a"].to_list() == [None, None]


def test_columns_that_were_not_asked_for_are_an_error_where_none_others_may_be(tmp_path):
    path = write(tmp_path, b"a,z,y\n1,2,3\n")
    assert read_table(path, required=["a"]).columns == [ROW, "a"]
    with pytest.raises(DataError, match=r"labels\.csv: unknown columns y, z; expected"):
        read_table(path, required=["a"], others_allowed=False)


def test_a_table_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"none\.csv: not a readable UTF-8 CSV: .*No such file"):
        read_table(tmp_path / "none.csv", required=["a"])


def test_repeats_are_told_apart_from_contradictions():
    rows, repeated = without_repeats(
        table(id=["b", "a", "b", "b"], grade=["1", "2", "1", "1"]), FILE, key="id"
    )
    assert rows.select("id", ROW).rows() == [("b", 2), ("a", 3)]
    assert repeated[ROW].to_list() == [4, 5]
    with pytest.raises(DataError, match=r"labels\.csv: 2 id with contradictory .*'a' in rows 2, 4"):
        without_repeats(table(id=["a", "b", "a", "b"], grade=["1", "1", "2", "2"]), FILE, key="id")


def test_blank_keys_are_an_error_that_names_the_first_rows():
    with pytest.raises(DataError, match=r"id is blank in rows 2, 3, 4 and 1 more"):
        without_repeats(table(id=[None] * 4), FILE, key="id")


def test_a_class_name_becomes_its_position_and_another_name_nothing():
    names = table(grade=["mild", "none", "Mild", None])
    found = names.select(labels=class_labels("grade", ["none", "mild"]))["labels"]
    assert found.to_list() == [[1], [0], None, None]


def test_findings_are_whole_numbers_in_any_notation():
    cells = table(x=["1", "1.0", "0", "-1.0", None, "2", "yes", "0.5"])
    found = cells.select(labels=finding_labels(["x"]))["labels"]
    assert found.to_list() == [[1], [1], [0], [-1], [0], [None], [None], [None]]


def test_one_hot_rows_have_a_single_one():
    cells = table(a=["1", "0.0", "1", "0", "1"], b=["0", "1.0", "1", "0", None])
    found = cells.select(labels=one_hot_labels(["a", "b"]))["labels"]
    assert found.to_list() == [[0], [1], None, None, None]


def test_an_unknown_label_is_an_error_with_row_value_and_what_is_allowed():
    cells = table(id=["p", "q"], x=["1", "7"])
    with pytest.raises(
        DataError,
        match=r"labels\.csv: unknown labels in 1 rows, first in row 3 \(id='q', x='7'\); "
        r"expected 0 or 1; correct the file",
    ):
        labelled(cells, FILE, labels=finding_labels(["x"]), allowed="0 or 1")


def test_exclusions_are_listed_by_name_or_counted():
    frame = pl.DataFrame({"path": ["p"], "sample": ["s"], "more": [1]})
    assert excluded(frame, reason="why").rows() == [("s", "p", "why")]
    assert counted(3, path=Path("a/b.csv"), reason="why").rows() == [
        (None, "b.csv", "why: 3 images")
    ]
    none = counted(0, path=FILE, reason="why")
    assert none.is_empty()
    assert none.schema == EXCLUSIONS_SCHEMA
