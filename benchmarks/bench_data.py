"""Seconds from label files to split and subsamples, at the size of CheXpert and of MIMIC-CXR-JPG.

    POLARS_MAX_THREADS=1 PYTHONPATH=workflow/scripts python benchmarks/bench_data.py

The label files are made up: official layout, official numbers of rows, patients and studies, each
finding about as frequent as in CheXpert's frontals, findings of a study correlated. CheXpert's
images are empty files of unlike sizes (so that none is read), which the index looks for; MIMIC has
none. Times are CPU seconds on one thread. Writing the files takes minutes.
"""

import gzip
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from threadpoolctl import threadpool_limits

from crsbench.datasets.definitions import DatasetDefinition, load_adapter, load_definitions
from crsbench.datasets.indexing import build_index
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
    sys.stdout.write(f"  {what:32s}{time.process_time() - start:8.2f} s\n")
    return result


def time_chexpert(definition: DatasetDefinition) -> None:
    """Print the seconds of index, split and subsamples."""
    sys.stdout.write(f"CheXpert, {N_TRAIN + N_VALID:,} rows\n")
    index = timed(
        "index, verify: size",
        lambda: build_index(
            definition,
            conflicting_labels="drop_conflicting",
            verify="size",
            threads=1,
            unusable=definition.root / "unusable.csv",
        ),
    ).index
    task = {
        "dataset": definition.name,
        "task": definition.task,
        "classes": definition.classes,
        "uncertain": "mask",
    }
    split = timed("split", lambda: split_index(index, shares=SIDES, seed=0, **task)).split
    timed(
        f"subsamples, {len(SEEDS)} x {split.filter(side='train').height:,}",
        lambda: label_subsamples(index, split, label_fractions=FRACTIONS, seeds=SEEDS, **task),
    )


def main() -> None:
    """Print the seconds of every step."""
    threadpool_limits(1)
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        definitions = load_definitions([OFFICIAL], data_root=folder)
        chexpert, mimic = definitions["chexpert"], definitions["mimic_cxr"]
        write_chexpert(chexpert, random)
        write_images(chexpert)
        time_chexpert(chexpert)
        write_mimic(mimic, random)
        sys.stdout.write(f"MIMIC-CXR-JPG, {N_MIMIC:,} rows\n")
        timed("label files", lambda: load_adapter(mimic).read_listing(mimic))


if __name__ == "__main__":
    main()
