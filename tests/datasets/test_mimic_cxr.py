"""MIMIC-CXR-JPG: official test split, frontal, labels by study and by name."""

import gzip
from pathlib import Path

import pytest
from verified import verify_and_index

from crsbench.datasets.definitions import DatasetDefinition, load_definitions, missing_data
from crsbench.datasets.mimic_cxr import read_listing
from crsbench.errors import DataError

OFFICIAL = Path(__file__).parents[2] / "config" / "datasets.yaml"
VIEWS = """dicom_id,subject_id,study_id,ViewPosition,Rows,Columns
d1,10000032,50000001,AP,9,9
d2,10000032,50000001,LATERAL,9,9
d3,10000032,50000002,PA,9,9
d4,10000033,50000003,AP,9,9
d5,11000033,50000004,,9,9
d6,11000033,50000004,PA,9,9
"""
SPLITS = """dicom_id,study_id,subject_id,split
d1,50000001,10000032,test
d2,50000001,10000032,test
d3,50000002,10000032,test
d4,50000003,10000033,train
d5,50000004,11000033,test
d6,50000004,11000033,test
"""


def labels(definition: DatasetDefinition, *, order=sorted) -> str:
    """Return labels of two studies: Edema, and an uncertain No Finding."""
    classes = list(order(definition.classes))
    first = ["1.0" if name == "Edema" else "" for name in classes]
    second = ["-1.0" if name == "No Finding" else "0.0" for name in classes]
    lines = [
        ["subject_id", "study_id", *classes],
        ["10000032", "50000001", *first],
        ["11000033", "50000004", *second],
    ]
    return "\n".join(",".join(line) for line in lines)


def write(definition: DatasetDefinition, *, packed: bool = True, **files: str) -> None:
    texts = {"metadata": VIEWS, "split": SPLITS, "chexpert": labels(definition)} | files
    for kind, text in texts.items():
        path = definition.root / f"mimic-cxr-2.0.0-{kind}.csv"
        if packed:
            path.with_suffix(".csv.gz").write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text)


@pytest.fixture
def definition(tmp_path) -> DatasetDefinition:
    found = load_definitions([OFFICIAL], data_root=tmp_path, store=tmp_path)["mimic_cxr"]
    found.root.mkdir()
    return found


@pytest.mark.parametrize("packed", [True, False])
def test_frontal_test_images_get_their_studys_labels_by_name(definition, packed):
    write(definition, packed=packed)
    assert missing_data(definition) is None
    samples = read_listing(definition).samples.sort("sample")
    columns = ("sample", "path", "group", "view", "label_source")
    assert samples.select(columns).rows() == [
        ("d1", "files/p10/p10000032/s50000001/d1.jpg", "10000032", "AP", "nlp"),
        ("d6", "files/p11/p11000033/s50000004/d6.jpg", "11000033", "PA", "nlp"),
    ]
    first, second = samples["labels"].to_list()
    assert first == [int(name == "Edema") for name in definition.classes]
    assert second == [-int(name == "No Finding") for name in definition.classes]


def test_another_view_and_another_part_of_the_split_can_be_taken(definition):
    write(definition)
    other = definition.model_copy(update={"views": ("PA",)})
    assert read_listing(other).samples["sample"].to_list() == ["d6"]
    other = definition.model_copy(update={"official_split": "train"})
    assert "d1" not in read_listing(other).samples["sample"].to_list()


def test_the_order_of_the_label_columns_changes_nothing(definition):
    write(definition)
    before = read_listing(definition).samples
    write(definition, chexpert=labels(definition, order=reversed))
    assert read_listing(definition).samples.equals(before)


def test_permuted_columns_and_byte_order_marks_change_nothing(definition):
    write(definition)
    before = read_listing(definition).samples
    permuted = {
        kind: "\ufeff" + "\n".join(",".join(line.split(",")[::-1]) for line in text.splitlines())
        for kind, text in (("metadata", VIEWS), ("split", SPLITS), ("chexpert", labels(definition)))
    }
    write(definition, **permuted)
    assert read_listing(definition).samples.equals(before)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("metadata", VIEWS.replace("ViewPosition", "View"), r"no column 'ViewPosition'; found"),
        ("metadata", VIEWS + "d1,10000032,50000001,PA,9,9\n", r"1 dicom_id with contradictory row"),
        ("split", SPLITS.replace("split", "part", 1), r"no column 'split'; found 'dicom_id'"),
        ("split", SPLITS + "d1,50000001,10000032,train\n", r"1 dicom_id with contradictory rows, "),
    ],
)
def test_a_renamed_column_and_a_contradictory_image_are_errors(definition, kind, text, message):
    write(definition, **{kind: text})
    with pytest.raises(DataError, match=rf"{kind}\.csv\.gz: {message}"):
        read_listing(definition)


def test_what_split_and_view_leave_out_is_counted_and_unlabelled_studies_are_listed(definition):
    write(definition)
    assert sorted(read_listing(definition).exclusions.rows(), key=str) == [
        ("d3", "files/p10/p10000032/s50000002/d3.jpg", "no label for its study"),
        (None, "mimic-cxr-2.0.0-metadata.csv.gz", "ViewPosition is LATERAL: 1 images"),
        (None, "mimic-cxr-2.0.0-metadata.csv.gz", "ViewPosition is blank: 1 images"),
        (None, "mimic-cxr-2.0.0-split.csv.gz", "split is train: 1 images"),
    ]


def test_only_the_test_patients_folders_are_looked_at(definition, tmp_path):
    write(definition)
    files = definition.root / "files"
    for number, path in enumerate(
        ["p10/p10000032/s50000001/d1", "p10/p10000032/s50000001/d2", "p10/p10000032/s9/x",
         "p11/p11000033/s50000004/d6", "p19/p19999999/s1/unseen"]
    ):  # fmt: skip
        image = files / f"{path}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(b"x" * (number + 1))
    result = verify_and_index(
        definition,
        conflicting_labels="drop_conflicting",
        near_duplicates=12,
        verify="size",
        threads=1,
        unusable=tmp_path / "unusable.csv",
    )
    assert result.index["sample"].to_list() == ["d1", "d6"]
    unlabelled = result.exclusions.filter(reason="no label")
    assert unlabelled["path"].to_list() == ["files/p10/p10000032/s9/x.jpg"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Pleural Effusion", "Effusion", r"no column 'Pleural Effusion'; found"),
        ("subject_id,", "subject_id,Airspace,", r"unknown columns Airspace; expected"),
        ("-1.0", "3.0", r"unknown labels in 1 rows, first in row 3"),
        ("50000004", "50000001", r"1 study_id with contradictory rows, such as '50000001' in row"),
    ],
)
def test_wrong_labels_are_errors(definition, old, new, message):
    text = labels(definition).replace(old, new)
    if "Airspace" in new:
        text = text.replace("0032,", "0032,0,").replace("0033,", "0033,0,")
    write(definition, chexpert=text)
    with pytest.raises(DataError, match=rf"chexpert\.csv\.gz: {message}"):
        read_listing(definition)


def test_an_unknown_split_is_an_error(definition):
    write(definition, split=SPLITS.replace("train", "trian"))
    with pytest.raises(DataError, match=r"split\.csv\.gz: split is 'trian' in row 5; expected one"):
        read_listing(definition)


def test_a_truncated_archive_is_an_error(definition):
    write(definition)
    path = definition.root / "mimic-cxr-2.0.0-split.csv.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(
        DataError, match=r"split\.csv\.gz: not a readable UTF-8 CSV: .*get it again"
    ):
        read_listing(definition)
