"""CheXpert: frontals of both files, whatever folders the images were unpacked into."""

from pathlib import Path

import polars as pl
import pytest
from PIL import Image
from verified import verify_and_index

from crsbench.datasets.chexpert import label_files, read_listing
from crsbench.datasets.definitions import DatasetDefinition, load_definitions, missing_data
from crsbench.errors import DataError

OFFICIAL = Path(__file__).parents[2] / "config" / "datasets.yaml"
TRAIN = "train/patient00001/study1/view1_frontal"
LATERAL = "train/patient00001/study1/view2_lateral"
VALID = "valid/patient64541/study1/view1_frontal"


@pytest.fixture
def definition(tmp_path) -> DatasetDefinition:
    found = load_definitions([OFFICIAL], data_root=tmp_path, store=tmp_path)["chexpert"]
    found.root.mkdir()
    return found


def row(path: str, *, view: str = "AP", **findings: str) -> dict[str, str]:
    kind = "Lateral" if "lateral" in path else "Frontal"
    fixed = {"Path": f"CheXpert-v1.0/{path}.jpg", "Sex": "Male", "Age": "50"}
    return fixed | {"Frontal/Lateral": kind, "AP/PA": view} | findings


def write_labels(folder: Path, side: str, rows: list[dict[str, str]], classes) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    blank = dict.fromkeys(classes, "")
    columns = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *classes]
    frame = pl.DataFrame([blank | entry for entry in rows]).select(columns)
    frame.with_columns(pl.all().replace("", None)).write_csv(folder / f"{side}.csv")


def write_both(folder: Path, definition: DatasetDefinition) -> None:
    train = [row(TRAIN, Edema="1.0", Fracture="-1.0"), row(LATERAL)]
    write_labels(folder, "train", train, definition.classes)
    write_labels(folder, "valid", [row(VALID, view="PA")], definition.classes)


def draw(path: Path, *, width: int) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    Image.new("L", (width, 4)).save(path)


LAYOUTS = {
    "merged tree": ("", "train/", "valid/"),
    "release folder": ("CheXpert-v1.0", "CheXpert-v1.0/train/", "CheXpert-v1.0/valid/"),
    "small release": (
        "CheXpert-v1.0-small",
        "CheXpert-v1.0-small/train/",
        "CheXpert-v1.0-small/valid/",
    ),
    "batch folders": (
        "CheXpert-v1.0 batch 1 (validate & csv)",
        "CheXpert-v1.0 batch 2 (train 1)/",
        "CheXpert-v1.0 batch 1 (validate & csv)/valid/",
    ),
    "batches in a folder": (
        "CheXpert-v1.0/batch 1 (validate & csv)",
        "CheXpert-v1.0/batch 2 (train 1)/",
        "CheXpert-v1.0/batch 1 (validate & csv)/valid/",
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_samples(tmp_path, definition, layout):
    labels, train, valid = LAYOUTS[layout]
    write_both(definition.root / labels, definition)
    for width, (home, sample) in enumerate([(train, TRAIN), (train, LATERAL), (valid, VALID)], 4):
        draw(definition.root / home / f"{sample.split('/', 1)[1]}.jpg", width=width)
    result = verify_and_index(
        definition,
        conflicting_labels="drop_conflicting",
        near_duplicates=12,
        verify="full",
        threads=1,
        unusable=tmp_path / "unusable.csv",
    )
    columns = ("sample", "group", "view", "label_source")
    assert result.index.select(columns).rows() == [
        (TRAIN, "patient00001", "AP", "nlp"),
        (VALID, "patient64541", "PA", "radiologist"),
    ]
    assert result.exclusions.rows() == [(None, "train.csv", "lateral view: 1 images")]
    assert missing_data(definition) is None


def test_blank_is_negative_and_uncertain_stays(definition):
    write_both(definition.root, definition)
    labels = dict(read_listing(definition).samples.select("sample", "labels").rows())
    expected = {"Edema": 1, "Fracture": -1}
    assert labels[TRAIN] == [expected.get(name, 0) for name in definition.classes]
    assert labels[VALID] == [0] * 14


def test_permuted_columns_change_nothing(definition):
    write_both(definition.root, definition)
    before = read_listing(definition).samples
    for path in label_files(definition):
        frame = pl.read_csv(path, infer_schema=False)
        frame.select(sorted(frame.columns)).write_csv(path)
    assert read_listing(definition).samples.equals(before)


def test_a_byte_order_mark_changes_nothing(definition):
    write_both(definition.root, definition)
    before = read_listing(definition).samples
    for path in label_files(definition):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_listing(definition).samples.equals(before)


def test_a_renamed_label_is_an_error(definition):
    write_both(definition.root, definition)
    path = definition.root / "train.csv"
    path.write_text(path.read_text().replace("Pleural Effusion", "Effusion"))
    with pytest.raises(DataError, match=r"train\.csv: no column 'Pleural Effusion'; found"):
        read_listing(definition)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Edema": "2.0"}, r"unknown labels in 1 rows, first in row 2 .*Edema='2.0'"),
        ({"Frontal/Lateral": "Oblique"}, r"Frontal/Lateral is 'Oblique' in row 2"),
        ({"Path": "view1_frontal.jpg"}, r"Path 'view1_frontal\.jpg' in row 2; expected FOLDER/tr"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_row(definition, change, message):
    write_both(definition.root, definition)
    write_labels(definition.root, "train", [row(TRAIN) | change], definition.classes)
    with pytest.raises(DataError, match=rf"train\.csv: {message}"):
        read_listing(definition)


def test_contradictory_rows_of_one_image_are_an_error(definition):
    write_both(definition.root, definition)
    rows = [row(TRAIN, Edema="1.0"), row(TRAIN, Edema="0.0")]
    write_labels(definition.root, "train", rows, definition.classes)
    with pytest.raises(
        DataError, match=r"1 sample with contradictory rows, such as 'train/patient"
    ):
        read_listing(definition)


def test_label_files_in_two_places_are_an_error_that_names_both(definition):
    for folder in ("CheXpert-v1.0", "CheXpert-v1.0-small"):
        write_both(definition.root / folder, definition)
    with pytest.raises(DataError, match=r"train\.csv stands in .*v1\.0 and in .*-small; name one"):
        label_files(definition)


def test_missing_label_files_are_sought_in_the_root(definition):
    names = [path.relative_to(definition.root).as_posix() for path in label_files(definition)]
    assert names == ["train.csv", "valid.csv"]
    assert "train.csv" in str(missing_data(definition))
