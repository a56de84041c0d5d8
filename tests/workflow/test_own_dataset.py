"""A researcher's own folder of images, with the entry and the command of docs/add-a-dataset.md."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image

from .conftest import ROOT, Project, copy_of_the_project

pytestmark = pytest.mark.workflow

GUIDE = (ROOT / "docs" / "add-a-dataset.md").read_text()
ENCODERS = (ROOT / "docs" / "add-an-encoder.md").read_text()
N_IMAGES = 40


def block(language: str, *, page: str = GUIDE, holding: str = "") -> str:
    """Return the first block of a language, with a text in it, in the guide."""
    texts = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return next(text for text in texts if holding in text)


def command() -> list[str]:
    """Return the guide's command without the word snakemake."""
    word, *arguments = shlex.split(block("console").replace("\\\n", " "))
    assert word == "snakemake"
    return arguments


def label_rows() -> Iterator[str]:
    """Yield the rows of the guide's CSV, continued: two images a patient."""
    header, *shown = block("csv").splitlines()
    yield header
    for number in range(1, N_IMAGES + 1):
        label = ["benign", "malignant"][number * 7 % 5 > 2]
        row = f"img{number:03d},images/img{number:03d}.png,{label},p{(number + 1) // 2:02d}"
        yield shown[number - 1] if number <= len(shown) else row


def write_dataset(folder: Path) -> None:
    """Write images, often brighter where malignant, and a CSV as a spreadsheet saves it."""
    (folder / "images").mkdir(parents=True)
    rows = list(label_rows())
    (folder / "labels.csv").write_bytes("\r\n".join([*rows, ""]).encode("utf-8-sig"))
    for number, row in enumerate(rows[1:]):
        _, file, label, _ = row.split(",")
        random = np.random.default_rng(number)
        shade = random.normal(140 if label == "malignant" else 120, 20)
        pixels = random.normal(shade, 40, (24, 32, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / file)


@pytest.fixture(scope="module")
def clinic(tmp_path_factory) -> Project:
    """A project in which the guide's example has been run."""
    project = copy_of_the_project(tmp_path_factory.mktemp("own") / "project")
    (project.folder / "clinic.yaml").write_text(block("yaml"))
    write_dataset(project.folder / "data" / "clinic")
    project.ran(*command())
    return project


def stopped(project: Project, store: str, rule: str) -> str:
    """Index the dataset for another store; a rule must fail with one line. Return the output."""
    _, *options = [word.replace("results/clinic", f"results/{store}") for word in command()]
    finished = project.snakemake(f"results/{store}/data/clinic/index.parquet", *options)
    assert finished.status == 1
    assert finished.output.count(f"crsbench: {rule}: ") == 1
    assert "Traceback" not in finished.output
    return finished.output


def test_the_guides_example_gives_a_table_of_scores(clinic):
    table = pl.read_csv(clinic.folder / "results/clinic/crs_table.csv")
    assert set(table["encoder"]) == {"tiny_resnet", "tiny_statistics"}
    assert set(table["scope"]) == {"aggregate", "clinic"}
    assert table["crs"].null_count() == 0


def test_the_guides_configuration_runs_an_encoder_and_a_dataset_of_ones_own(clinic):
    cards = block("yaml", page=ENCODERS, holding="untrained:")
    (clinic.folder / "my_encoders.yaml").write_text(cards)
    (clinic.folder / "mine.yaml").write_text(block("yaml", holding="# mine.yaml"))
    fewer = ("encoders=[untrained,tiny_statistics]", "perturbations=[blur]", "seeds=[0]")
    options = ("--configfile", "mine.yaml", "--config", *fewer)
    clinic.ran("results/mine/crs_table.csv", *options)
    table = pl.read_csv(clinic.folder / "results/mine/crs_table.csv")
    assert set(table["encoder"]) == {"untrained", "tiny_statistics"}
    shown = clinic.crsbench("show", *options)
    assert "Untrained ViT" in shown.stdout


def test_absolute_paths_stop_the_run_with_what_to_write(clinic, tmp_path):
    project = clinic.duplicate(tmp_path / "copy")
    folder = project.folder / "data/clinic"
    project.edit("data/clinic/labels.csv", "images/img002.png", f"{folder}/images/img002.png")
    output = stopped(project, "absolute", "verify_data")
    assert "labels.csv: file in row 3 is an absolute path" in output
    assert "expected paths relative to the root data/clinic: write 'images/img002.png'" in output


def test_patients_are_not_torn_apart(clinic):
    data = clinic.folder / "results/clinic/data/clinic"
    index, split = (pl.read_parquet(data / f"{name}.parquet") for name in ("index", "split"))
    assert index.height == N_IMAGES
    sides = index.join(split, on="sample").group_by("group").agg(pl.col("side").n_unique())
    assert sides.height == N_IMAGES // 2
    assert sides["side"].max() == 1


def test_cells_without_data_are_skipped_and_listed(clinic):
    entry = block("yaml").replace("clinic:", "elsewhere:").replace("data/clinic", "data/elsewhere")
    (clinic.folder / "elsewhere.yaml").write_text(entry)
    arguments = [
        {
            "datasets=[clinic]": "datasets=[clinic,elsewhere]",
            "dataset_definitions=[config/datasets.yaml,clinic.yaml]":
                "dataset_definitions=[clinic.yaml,elsewhere.yaml]",
            "results/clinic/crs_table.csv": "results/clinic/runs/skip/crs_table.csv",
        }.get(word, word)
        for word in command()
    ]  # fmt: skip
    finished = clinic.ran(*arguments, "missing=skip", "run=skip")
    assert finished.jobs == {"aggregate": 1, "score": 1}
    notes = (clinic.folder / "results/clinic/runs/skip/crs_notes.md").read_text()
    for encoder in ("tiny_resnet", "tiny_statistics"):
        assert f"- {encoder} on elsewhere: data missing\n" in notes


def test_a_broken_csv_stops_the_run_with_file_row_and_what_is_allowed(clinic, tmp_path):
    project = clinic.duplicate(tmp_path / "copy")
    project.edit("data/clinic/labels.csv", "img002.png,malignant", "img002.png,melanoma")
    assert re.search(
        r"labels\.csv: unknown labels in 1 rows, first in row 3 \(.*diagnosis='melanoma'.*\); "
        r"expected one of benign, malignant in diagnosis; correct the file",
        stopped(project, "broken", "verify_data"),
    )


def test_a_damaged_image_stops_the_run_and_is_listed(clinic, tmp_path):
    project = clinic.duplicate(tmp_path / "copy")
    image = project.folder / "data/clinic/images/img005.png"
    image.write_bytes(image.read_bytes()[:200])
    output = stopped(project, "damaged", "verify_data")
    assert "clinic: 1 of 40 images in data/clinic cannot be used" in output
    listed = pl.read_csv(project.folder / "results/damaged/data/clinic/unusable.csv")
    assert listed["path"].to_list() == ["images/img005.png"]


def test_a_missing_folder_stops_the_run_with_how_to_get_the_data(clinic, tmp_path):
    project = clinic.duplicate(tmp_path / "copy")
    (project.folder / "data/clinic").rename(tmp_path / "moved")
    output = stopped(project, "missing", "acquire")
    assert "clinic: its folder data/clinic does not exist; get the data" in output
    assert 'Ask the study office for the folder "clinic".' in output
