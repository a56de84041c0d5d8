"""Seconds from label files to split and subsamples, at the size of CheXpert and of MIMIC-CXR-JPG.

    POLARS_MAX_THREADS=1 PYTHONPATH=workflow/scripts python benchmarks/bench_data.py

The label files are made up: official layout, official numbers of rows, patients and studies, each
finding about as frequent as in CheXpert's frontals, findings of a study correlated. The images are
empty files of unlike sizes (so that none is read), which the index looks for. Times are CPU
seconds on one thread; the goal is under 10 s each for index and split. What a full decode and the
search for images that look alike cost is timed apart, on drawn pictures and on random hashes.
Writing the files takes minutes. `data.md` beside this file has the figures of one machine.
"""

import gzip
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from PIL import Image
from threadpoolctl import threadpool_limits

from crsbench.datasets.definitions import DatasetDefinition, load_adapter, load_definitions
from crsbench.datasets.indexing import build_index
from crsbench.datasets.verification import verify_images
from crsbench.images import inspect_image
from crsbench.likeness import similar_pairs
from crsbench.splits import label_subsamples, split_index

OFFICIAL = Path(__file__).parents[1] / "config" / "datasets.yaml"
N_TRAIN, N_VALID, N_PATIENTS = 223_414, 234, 64_540
N_MIMIC, N_STUDIES, N_TEST = 377_110, 227_827, 5_159
#: Positive and uncertain per thousand frontals, in the order of the definition.
PER_THOUSAND = (
    (89, 0), (48, 54), (122, 35), (493, 23), (37, 6), (260, 62), (68, 128), (24, 84), (156, 156),
    (93, 14), (403, 50), (13, 9), (39, 3), (561, 5),
)  # fmt: skip
VIEWS = {"AP": 0.39, "PA": 0.25, "LATERAL": 0.22, "LL": 0.10, "": 0.04}
SIDES = {"train": 0.7, "calibration": 0.1, "test": 0.2}
FRACTIONS = (0.01, 0.05, 0.10, 0.25, 1.0)
SEEDS = (0, 1, 2, 3, 4)
N_FRONTAL, NEAR_DUPLICATES = 191_229, 12
#: Width, height and number of the pictures that are decoded: a radiograph, and its small release.
PICTURES = {"2320 x 2828 px": (2320, 2828, 12), "320 x 390 px": (320, 390, 300)}


def findings(n_studies: int, random: np.random.Generator) -> np.ndarray:
    """Return cells of correlated findings, ("1.0", "0.0", "-1.0" or ""), (n_studies, 14)."""
    illness = random.normal(size=(n_studies, 1))
    latent = 0.5 * illness + np.sqrt(0.75) * random.normal(size=(n_studies, len(PER_THOUSAND)))
    rank = latent.argsort(axis=0).argsort(axis=0) / n_studies
    positive, uncertain = np.array(PER_THOUSAND).T / 1000
    blank = np.where(random.random(rank.shape) < 0.8, "", "0.0")
    not_positive = np.where(rank > 1 - positive - uncertain, "-1.0", blank)
    return np.where(rank > 1 - positive, "1.0", not_positive)


def write_chexpert(definition: DatasetDefinition, random: np.random.Generator) -> None:
    """Write train.csv and valid.csv."""
    definition.root.mkdir(parents=True)
    for side, n_rows in (("train", N_TRAIN), ("valid", N_VALID)):
        weight = random.exponential(size=N_PATIENTS) ** 1.3
        patient = np.sort(random.choice(N_PATIENTS, n_rows, p=weight / weight.sum()))
        lateral = random.random(n_rows) < 0.145
        view = np.where(lateral, "lateral", "frontal")
        paths = [
            f"CheXpert-v1.0/{side}/patient{number:05d}/study1/view{row}_{name}.jpg"
            for row, (number, name) in enumerate(zip(patient, view, strict=True))
        ]
        columns = {
            "Path": paths,
            "Sex": ["Male"] * n_rows,
            "Age": ["50"] * n_rows,
            "Frontal/Lateral": np.where(lateral, "Lateral", "Frontal"),
            "AP/PA": np.where(lateral, "", "AP"),
        }
        cells = dict(zip(definition.classes, findings(n_rows, random).T, strict=True))
        pl.DataFrame(columns | cells).write_csv(definition.root / f"{side}.csv")


def write_images(definition: DatasetDefinition) -> None:
    """Write a file without content for every row, each of another size."""
    samples = load_adapter(definition).read_listing(definition).samples
    for size, path in enumerate(samples["path"], start=1):
        image = definition.root / path
        image.parent.mkdir(parents=True, exist_ok=True)
        image.touch()
        os.truncate(image, size)


def write_mimic(definition: DatasetDefinition, random: np.random.Generator) -> None:
    """Write the packed files of metadata, split and labels."""
    definition.root.mkdir(parents=True)
    more = random.integers(N_STUDIES, size=N_MIMIC - N_STUDIES)
    study = np.sort(np.append(np.arange(N_STUDIES), more))
    subject = 10_000_000 + study // 4
    keys = {
        "dicom_id": [f"{number:08x}-{number:08x}-{number:08x}" for number in range(N_MIMIC)],
        "subject_id": subject,
        "study_id": 50_000_000 + study,
    }
    views = random.choice(list(VIEWS), N_MIMIC, p=list(VIEWS.values()))
    side = np.where(np.arange(N_MIMIC) < N_TEST, "test", "train")
    labels = dict(zip(sorted(definition.classes), findings(N_STUDIES, random).T, strict=True))
    studies = np.arange(N_STUDIES)
    labelled = {"subject_id": 10_000_000 + studies // 4, "study_id": 50_000_000 + studies}
    tables = {
        "metadata": keys | {"ViewPosition": views, "Rows": 2544, "Columns": 3056},
        "split": keys | {"split": side},
        "chexpert": labelled | labels,
    }
    for kind, table in tables.items():
        path = definition.root / f"mimic-cxr-2.0.0-{kind}.csv.gz"
        path.write_bytes(gzip.compress(pl.DataFrame(table).write_csv().encode(), 1))


def timed(what: str, work: Callable[[], Any]) -> Any:
    """Run a step and print what it took."""
    start = time.process_time()
    result = work()
    sys.stdout.write(f"  {what:40s}{time.process_time() - start:8.2f} s\n")
    return result


def time_index(definition: DatasetDefinition) -> pl.DataFrame:
    """Print the seconds of label files, file sizes and index; return the index."""
    listing = timed("label files", lambda: load_adapter(definition).read_listing(definition))
    unusable = definition.root / "unusable.csv"
    images = timed(
        "verify: size",
        lambda: verify_images(listing, definition, verify="size", threads=1, unusable=unusable),
    )
    return timed(
        "index, label files included",
        lambda: build_index(
            definition, images, conflicting_labels="drop_conflicting", near_duplicates=None
        ),
    ).index


def time_split(definition: DatasetDefinition, index: pl.DataFrame) -> None:
    """Print the seconds of split and subsamples."""
    about: dict[str, Any] = {
        "dataset": definition.name,
        "task": definition.task,
        "classes": definition.classes,
    }
    split = timed("split", lambda: split_index(index, shares=SIDES, seed=0, **about)).split
    draws = {"label_fractions": FRACTIONS, "seeds": SEEDS, "uncertain": "mask"}
    timed(
        f"subsamples, {len(SEEDS)} x {split.filter(side='train').height:,}",
        lambda: label_subsamples(index, split, **draws, **about),
    )


def time_likeness(random: np.random.Generator) -> None:
    """Print the seconds of the search for near duplicates; real hashes take a third longer."""
    hashes = random.integers(0, 256, (N_FRONTAL, 32), dtype=np.uint8)
    timed(
        f"pairs within {NEAR_DUPLICATES} of 256 bits",
        lambda: similar_pairs(hashes, max_distance=NEAR_DUPLICATES),
    )


def time_decode(folder: Path, random: np.random.Generator) -> None:
    """Print the rate of a full decode with digest and perceptual hash, one thread."""
    for name, (width, height, n_pictures) in PICTURES.items():
        coarse = random.integers(0, 256, (height // 16, width // 16), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=90)
        path = folder / "picture.jpg"
        path.write_bytes(buffer.getvalue())
        start = time.process_time()
        for _ in range(n_pictures):
            inspect_image(path)
        rate = n_pictures / (time.process_time() - start)
        n_bytes = len(buffer.getvalue())
        sys.stdout.write(
            f"  {name:20s}{n_bytes / 1e6:6.2f} MB{rate:9.1f} images/s{rate * n_bytes / 1e6:8.1f} "
            "MB/s\n"
        )


def main() -> None:
    """Print the seconds of every step."""
    threadpool_limits(1)
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        definitions = load_definitions([OFFICIAL], data_root=folder)
        for name, write, n_rows in (
            ("chexpert", write_chexpert, N_TRAIN + N_VALID),
            ("mimic_cxr", write_mimic, N_MIMIC),
        ):
            definition = definitions[name]
            write(definition, random)
            write_images(definition)
            sys.stdout.write(f"{definition.label}, {n_rows:,} rows\n")
            time_split(definition, time_index(definition))
        sys.stdout.write(f"Images that look alike, {N_FRONTAL:,} hashes\n")
        time_likeness(random)
        sys.stdout.write("Full decode, digest and perceptual hash, grey JPEG\n")
        time_decode(Path(folder), random)


if __name__ == "__main__":
    main()
