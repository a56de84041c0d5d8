"""The adapters on made-up label files of the official size: the counts of the releases come out.

Numbers of rows, images, patients, lesions, views and labels are those of the official files; which
row has which is made up. No image is needed: an adapter reads label files.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from crsbench.datasets.definitions import DatasetDefinition, load_adapter, load_definitions
from crsbench.datasets.tables import Listing
from crsbench.datasets.verdicts import judge

OFFICIAL = Path(__file__).parents[2] / "config" / "datasets.yaml"

ISIC = {"MEL": 4522, "NV": 12875, "BCC": 3323, "AK": 867, "BKL": 2624, "DF": 239, "VASC": 253,
        "SCC": 628}  # fmt: skip
#: Images and lesions of each source; the rest of the images names no lesion.
ISIC_SOURCES = {"BCN": (12413, 3576), "HAM": (10015, 7470), "MSK4": (819, 801)}
APTOS = [1805, 370, 999, 193, 295]
#: Positive, negative and uncertain among the 191,027 frontal rows of train.csv; blank elsewhere.
CHEXPERT = {
    "No Finding": (16974, 0, 0),
    "Enlarged Cardiomediastinum": (9187, 15345, 10286),
    "Cardiomegaly": (23385, 7869, 6707),
    "Lung Opacity": (94211, 5051, 4431),
    "Lung Lesion": (7040, 776, 1108),
    "Edema": (49675, 15915, 11818),
    "Consolidation": (12983, 19608, 24381),
    "Pneumonia": (4675, 1875, 15981),
    "Atelectasis": (29720, 1025, 29863),
    "Pneumothorax": (17693, 47823, 2708),
    "Pleural Effusion": (76899, 25299, 9578),
    "Pleural Other": (2505, 209, 1812),
    "Fracture": (7436, 1993, 499),
    "Support Devices": (107170, 5340, 915),
}
CHEXPERT_VIEWS = {"AP": 161590, "PA": 29420, "LL": 16, "RL": 1}
N_LATERAL = 32387
MIMIC_VIEWS = {"AP": 147169, "PA": 96155, "LATERAL": 82852, "LL": 35129, "AP AXIAL": 21, "": 15784}
#: Images and studies of each part.
MIMIC_SPLIT = {"train": (368960, 222758), "validate": (2991, 1808), "test": (5159, 3269)}


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def definition(name: str, data_root: Path) -> DatasetDefinition:
    found = load_definitions([OFFICIAL], data_root=data_root)[name]
    found.root.mkdir()
    return found


def listing(of: DatasetDefinition) -> Listing:
    return load_adapter(of).read_listing(of)


def unlike_the_release(of: DatasetDefinition, found: Listing) -> set[str]:
    """Return which facts of the release stated in the definition the files do not bear out."""
    verdict = judge(of, found)
    return {what for what, value in verdict.expected.items() if verdict.found.get(what) != value}


def in_any_order(random: np.random.Generator, counts: dict[str, int]) -> np.ndarray:
    """Return each value as often as its count says."""
    return random.permutation(np.repeat(list(counts), list(counts.values())))


def shared_out(n_rows: int, n_units: int) -> np.ndarray:
    """Return the unit of each row: all units occur, the first ones several times."""
    return np.sort(np.concatenate([np.arange(n_units), np.arange(n_rows - n_units) % n_units]))


def counts_of(samples: pl.DataFrame, column: str) -> dict[str | None, int]:
    return dict(samples[column].value_counts().rows())


def labels_of(samples: pl.DataFrame) -> np.ndarray:
    return samples["labels"].list.to_array(len(samples["labels"][0])).to_numpy()


def test_isic_has_25331_images_in_eight_classes_and_11847_lesions(tmp_path, random):
    of = definition("isic2019", tmp_path)
    label = in_any_order(random, ISIC)
    lesion = np.concatenate(
        [
            [f"{source}_{unit:07d}" for unit in shared_out(*size)]
            for source, size in ISIC_SOURCES.items()
        ]
    )
    lesion = np.append(lesion, [""] * (len(label) - len(lesion)))
    images = [f"ISIC_{row:07d}" for row in range(len(label))]
    hot = {name: (label == name).astype(float) for name in ISIC}
    truth = pl.DataFrame({"image": images, **hot, "UNK": 0.0})
    truth.write_csv(of.root / "ISIC_2019_Training_GroundTruth.csv")
    about = pl.DataFrame({"image": images, "lesion_id": lesion}).sample(fraction=1, shuffle=True)
    about.write_csv(of.root / "ISIC_2019_Training_Metadata.csv")

    assert unlike_the_release(of, listing(of)) == {"label digest", "group digest"}
    found = listing(of).samples.sort("sample")
    assert found.height == 25_331
    assert labels_of(found)[:, 0].tolist() == [list(ISIC).index(name) for name in label]
    assert found["group"].n_unique() == 11_847 + 2_084
    assert counts_of(found, "source") == {"BCN": 12413, "HAM": 10015, "MSK4": 819, None: 2084}


def test_aptos_has_3662_images_in_five_grades(tmp_path, random):
    of = definition("aptos2019", tmp_path)
    grade = in_any_order(random, dict(enumerate(APTOS)))
    rows = {"id_code": [f"{row:012x}" for row in range(len(grade))], "diagnosis": grade}
    pl.DataFrame(rows).write_csv(of.root / "train.csv")

    assert unlike_the_release(of, listing(of)) == {"label digest", "train.csv"}
    found = listing(of).samples
    assert found.height == 3_662
    assert np.bincount(labels_of(found)[:, 0]).tolist() == APTOS
    assert found["group"].n_unique() == 3_662


def write_chexpert(path: Path, side: str, patient: Sequence[int], **columns: np.ndarray) -> None:
    """Write a label file; the columns are view, kind and the findings."""
    frame = pl.DataFrame({"patient": patient, **columns}).with_row_index("row")
    folder = pl.format("CheXpert-v1.0/{}/patient{}", pl.lit(side), pl.col("patient").cast(str))
    name = pl.format("study1/view{}_{}.jpg", "row", pl.col("kind").str.to_lowercase())
    frame.select(
        pl.format("{}/{}", folder, name).alias("Path"),
        Sex=pl.lit("Male"),
        Age=pl.lit(50),
        **{"Frontal/Lateral": pl.col("kind"), "AP/PA": pl.col("view")},
        **{finding: pl.col(finding) for finding in CHEXPERT},
    ).write_csv(path)


def test_chexpert_has_191229_frontal_images_of_64734_patients(tmp_path, random):
    of = definition("chexpert", tmp_path)
    n_frontal = sum(CHEXPERT_VIEWS.values())
    blank = np.full(N_LATERAL, "")
    findings = {
        name: np.append(
            in_any_order(
                random,
                {"1.0": positive, "0.0": negative, "-1.0": uncertain,
                 "": n_frontal - positive - negative - uncertain},
            ),
            blank,
        )
        for name, (positive, negative, uncertain) in CHEXPERT.items()
    }  # fmt: skip
    write_chexpert(
        of.root / "train.csv",
        "train",
        np.append(shared_out(n_frontal, 64_534), np.arange(64_540 - N_LATERAL, 64_540)),
        view=np.append(in_any_order(random, CHEXPERT_VIEWS), blank),
        kind=np.repeat(["Frontal", "Lateral"], [n_frontal, N_LATERAL]),
        **findings,
    )
    write_chexpert(
        of.root / "valid.csv",
        "valid",
        np.append(shared_out(202, 200), np.arange(32)) + 64_541,
        view=np.repeat(["AP", "PA", ""], [169, 33, 32]),
        kind=np.repeat(["Frontal", "Lateral"], [202, 32]),
        **dict.fromkeys(CHEXPERT, np.append(["1.0"], ["0.0"] * 233)),
    )

    found = listing(of)
    assert unlike_the_release(of, found) == set()
    assert found.samples.height == 191_229
    assert found.samples["group"].n_unique() == 64_534 + 200
    assert counts_of(found.samples, "label_source") == {"nlp": 191_027, "radiologist": 202}
    views = CHEXPERT_VIEWS | {"AP": 161_590 + 169, "PA": 29_420 + 33}
    assert counts_of(found.samples, "view") == views
    assert sorted(found.exclusions["reason"]) == [
        "lateral view: 32 images",
        "lateral view: 32387 images",
    ]
    assert len(found.filtered) == 223_648 - 191_229
    train = labels_of(found.samples.filter(label_source="nlp"))
    counted = {
        name: ((train[:, column] == 1).sum(), (train[:, column] == -1).sum())
        for column, name in enumerate(of.classes)
    }
    assert counted == {
        name: (positive, uncertain) for name, (positive, _, uncertain) in CHEXPERT.items()
    }


def test_mimic_has_the_frontal_images_of_5159_in_the_test_split(tmp_path, random):
    of = definition("mimic_cxr", tmp_path)
    sizes = MIMIC_SPLIT.items()
    starts = np.cumsum([0, *(n_studies for _, (_, n_studies) in sizes)])
    study = np.concatenate(
        [start + shared_out(*size) for start, (_, size) in zip(starts, sizes, strict=False)]
    )
    part = np.repeat(list(MIMIC_SPLIT), [n_images for n_images, _ in MIMIC_SPLIT.values()])
    view = in_any_order(random, MIMIC_VIEWS)
    n_rows = len(study)
    keys = pl.DataFrame(
        {
            "dicom_id": [f"{row:08x}-{row:08x}" for row in range(n_rows)],
            "subject_id": 10_000_000 + study // 4,
            "study_id": 50_000_000 + study,
        }
    )
    keys.with_columns(ViewPosition=view).write_csv(of.root / "mimic-cxr-2.0.0-metadata.csv")
    keys.with_columns(split=part).sample(fraction=1, shuffle=True).write_csv(
        of.root / "mimic-cxr-2.0.0-split.csv"
    )
    labelled = np.arange(227_827)  # the last 8 studies, of the test split, have no row
    findings = {name: np.where(labelled % 7 == 0, "1.0", "") for name in sorted(of.classes)}
    of_studies = {"subject_id": 10_000_000 + labelled // 4, "study_id": 50_000_000 + labelled}
    pl.DataFrame(of_studies | findings).write_csv(of.root / "mimic-cxr-2.0.0-chexpert.csv")

    found = listing(of)
    assert unlike_the_release(of, found) == set()
    is_frontal_test = (part == "test") & np.isin(view, ["AP", "PA"])
    is_labelled = study < 227_827
    assert n_rows == 377_110
    assert set(found.samples["sample"]) == set(
        keys["dicom_id"].filter(is_frontal_test & is_labelled)
    )
    reasons = found.exclusions["reason"]
    assert (reasons == "no label for its study").sum() == (is_frontal_test & ~is_labelled).sum()
    counts = {
        reason.partition(": ")[0]: int(reason.split()[-2])
        for reason in reasons
        if reason.endswith(" images")
    }
    assert (counts["split is train"], counts["split is validate"]) == (368_960, 2_991)
    of_views = [count for what, count in counts.items() if what.startswith("ViewPosition")]
    assert found.samples.height + sum(of_views) + (is_frontal_test & ~is_labelled).sum() == 5_159
