"""ISIC 2019: one-hot labels by name, lesions as groups."""

from pathlib import Path

import pytest

from crsbench.datasets.definitions import DatasetDefinition, load_definitions
from crsbench.datasets.isic2019 import read_listing
from crsbench.datasets.tables import Listing
from crsbench.errors import DataError

OFFICIAL = Path(__file__).parents[2] / "config" / "datasets.yaml"
TRUTH = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK\n"
LESIONS = "image,age_approx,anatom_site_general,lesion_id,sex\n"


def listing(root: Path, truth: str, lesions: str) -> Listing:
    definition = load_definitions([OFFICIAL], data_root=root, store=root)["isic2019"]
    return read_listing(write(definition, truth, lesions))


def write(definition: DatasetDefinition, truth: str, lesions: str) -> DatasetDefinition:
    definition.root.mkdir()
    (definition.root / "ISIC_2019_Training_GroundTruth.csv").write_text(truth)
    (definition.root / "ISIC_2019_Training_Metadata.csv").write_text(lesions)
    return definition


def test_labels_lesions_and_sources_are_read(tmp_path):
    samples = listing(
        tmp_path,
        TRUTH
        + "ISIC_1,0.0,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0\n"
        + "ISIC_2_downsampled,0,0,0,0,0,0,0,1,0\n",
        LESIONS + "ISIC_2_downsampled,,,,male\nISIC_1,55,torso,BCN_0001,female\n",
    ).samples.sort("sample")
    assert samples.rows() == [
        ("ISIC_1", "ISIC_2019_Training_Input/ISIC_1.jpg", "BCN_0001", [1], None, "BCN", None),
        (
            "ISIC_2_downsampled",
            "ISIC_2019_Training_Input/ISIC_2_downsampled.jpg",
            "ISIC_2_downsampled",
            [7],
            None,
            None,
            None,
        ),
    ]


def test_images_of_a_lesion_share_a_group(tmp_path):
    rows = "".join(f"ISIC_{i},1,0,0,0,0,0,0,0,0\n" for i in range(3))
    lesions = "".join(f"ISIC_{i},,,HAM_{i // 2},\n" for i in range(3))
    samples = listing(tmp_path, TRUTH + rows, LESIONS + lesions).samples.sort("sample")
    assert samples["group"].to_list() == ["HAM_0", "HAM_0", "HAM_1"]


def test_permuted_and_surplus_columns_change_nothing(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    lesions = LESIONS + "ISIC_1,55,torso,HAM_1,male\n"
    plain = listing(tmp_path / "a", TRUTH + "ISIC_1,0,0,0,1,0,0,0,0,0\n", lesions)
    permuted = listing(
        tmp_path / "b",
        "UNK,AK,MEL,SCC,NV,BCC,image,BKL,DF,VASC\n0,1,0,0,0,0,ISIC_1,0,0,0\n",
        "gender,lesion_id,target,image\nmale,HAM_1,4,ISIC_1\n",
    )
    assert plain.samples.equals(permuted.samples)


def test_a_byte_order_mark_changes_nothing(tmp_path):
    found = listing(
        tmp_path,
        "\ufeff" + TRUTH + "ISIC_1,0,0,0,1,0,0,0,0,0\n",
        "\ufeff" + LESIONS + "ISIC_1,55,torso,HAM_1,male\n",
    )
    assert found.samples.select("sample", "labels").rows() == [("ISIC_1", [3])]


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        ("ISIC_1,1,1,0,0,0,0,0,0,0\n", r"unknown labels .*row 2 .*MEL='1', NV='1'.*a single 1"),
        ("ISIC_1,0,0,0,0,0,0,0,0,0\n", r"unknown labels in 1 rows"),
        ("ISIC_1,0.5,0.5,0,0,0,0,0,0,0\n", r"unknown labels in 1 rows"),
        ("ISIC_1,1,,0,0,0,0,0,0,0\n", r"unknown labels in 1 rows"),
        ("ISIC_1,1,x,0,0,0,0,0,0,0\n", r"unknown labels in 1 rows"),
        ("ISIC_1,0,0,0,0,0,0,0,0,1\n", r"UNK is '1' in row 2"),
        ("ISIC_2,1,0,0,0,0,0,0,0,0\n", r"Metadata\.csv: no row for 1 images .*'ISIC_2'"),
        (
            "ISIC_1,1,0,0,0,0,0,0,0,0\nISIC_1,0,1,0,0,0,0,0,0,0\n",
            r"GroundTruth\.csv: 1 image with contradictory rows, such as 'ISIC_1' in rows 2, 3",
        ),
    ],
)
def test_wrong_labels_are_errors(tmp_path, truth, message):
    with pytest.raises(DataError, match=message):
        listing(tmp_path, TRUTH + truth, LESIONS + "ISIC_1,,,HAM_1,\n")


def test_one_image_in_two_lesions_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"Metadata\.csv: 1 image with contradictory rows"):
        listing(
            tmp_path,
            TRUTH + "ISIC_1,1,0,0,0,0,0,0,0,0\n",
            LESIONS + "ISIC_1,,,HAM_1,\nISIC_1,,,HAM_2,\n",
        )


def test_a_repeated_row_is_kept_once_and_listed(tmp_path):
    found = listing(
        tmp_path,
        TRUTH + "ISIC_1,1,0,0,0,0,0,0,0,0\nISIC_1,1.0,0,0,0,0,0,0,0,0\n",
        LESIONS + "ISIC_1,,,HAM_1,\nISIC_1,,,HAM_1,\n",
    )
    assert found.samples.height == 1
    assert found.exclusions.rows() == [
        ("ISIC_1", "ISIC_2019_Training_Input/ISIC_1.jpg", "repeated row")
    ]


def test_a_renamed_class_is_an_error_that_names_it(tmp_path):
    with pytest.raises(DataError, match=r"GroundTruth\.csv: no column 'NV'; found .*'NEV'"):
        listing(tmp_path, TRUTH.replace("NV", "NEV"), LESIONS)
