"""APTOS 2019: grades 0 to 4."""

from pathlib import Path

import pytest

from crsbench.datasets.aptos2019 import read_listing
from crsbench.datasets.definitions import load_definitions
from crsbench.datasets.tables import Listing
from crsbench.errors import DataError

OFFICIAL = Path(__file__).parents[2] / "config" / "datasets.yaml"


def listing(root: Path, text: str) -> Listing:
    definition = load_definitions([OFFICIAL], data_root=root, store=root)["aptos2019"]
    definition.root.mkdir()
    (definition.root / "train.csv").write_text(text)
    return read_listing(definition)


def test_grades_are_read_and_an_image_is_its_own_group(tmp_path):
    samples = listing(tmp_path, "id_code,diagnosis\n0a,4\n0b,0\n").samples.sort("sample")
    assert samples.select("sample", "path", "group", "labels").rows() == [
        ("0a", "train_images/0a.png", "0a", [4]),
        ("0b", "train_images/0b.png", "0b", [0]),
    ]


def test_an_id_that_looks_like_a_number_stays_text(tmp_path):
    samples = listing(tmp_path, "id_code,diagnosis\n001e5,1\n").samples
    assert samples["sample"].to_list() == ["001e5"]


@pytest.mark.parametrize("grade", ["5", "-1", "2.5", "mild", ""])
def test_an_unknown_grade_is_an_error(tmp_path, grade):
    message = r"train\.csv: unknown labels in 1 rows, first in row 2 .*expected a diagnosis of 0, 1"
    with pytest.raises(DataError, match=message):
        listing(tmp_path, f"id_code,diagnosis\na,{grade}\n")


def test_contradictory_grades_of_one_id_are_an_error_that_names_the_rows(tmp_path):
    with pytest.raises(
        DataError, match=r"1 id_code with contradictory rows, such as 'a' in rows 2"
    ):
        listing(tmp_path, "id_code,diagnosis\na,0\na,1\n")


def test_a_repeated_row_is_kept_once_and_listed(tmp_path):
    found = listing(tmp_path, "id_code,diagnosis\na,0\na,0\n")
    assert found.samples.height == 1
    assert found.exclusions.rows() == [("a", "train_images/a.png", "repeated row")]


def test_a_renamed_column_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"train\.csv: no column 'diagnosis'; found 'id_code', 'gr"):
        listing(tmp_path, "id_code,grade\na,0\n")


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffid_code,diagnosis\n0a,4\n",
        "diagnosis,id_code\n4,0a\n",
        "id_code,diagnosis\r\n0a,4\r\n",
    ],
    ids=["byte-order mark", "permuted columns", "CRLF"],
)
def test_the_form_of_the_file_does_not_matter(tmp_path, text):
    samples = listing(tmp_path, text).samples
    assert samples.select("sample", "labels").rows() == [("0a", [4])]
