"""acquire, verify_data, index, split: from a server's files to a split, and no stage twice."""

import io
import json
import sys
import zipfile
from collections.abc import Iterator

import numpy as np
import polars as pl
import pytest
import yaml
from PIL import Image

from .conftest import ROOT, Project

sys.path.insert(0, str(ROOT / "tests" / "acquisition"))

from server import Server, running

pytestmark = pytest.mark.workflow

N_IMAGES = 24
NAMES = ("ISIC_2019_Training_Input.zip", "ISIC_2019_Training_Metadata.csv",
         "ISIC_2019_Training_GroundTruth.csv")  # fmt: skip
TARGET = "results/data/isic2019/split.parquet"
CONFIG = ("--config", "dataset_definitions=[mine.yaml]", "datasets=[isic2019]", "shift=[]",
          "encoders=[resnet50]")  # fmt: skip
STAGES = {"acquire": 1, "verify_data": 1, "index": 1, "split": 1}


def pack_images() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number in range(N_IMAGES):
            pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
            raw = io.BytesIO()
            Image.fromarray(pixels).save(raw, "JPEG")
            archive.writestr(f"ISIC_2019_Training_Input/ISIC_{number:02d}.jpg", raw.getvalue())
    return packed.getvalue()


@pytest.fixture
def server() -> Iterator[Server]:
    """A replica of the release, small."""
    truth = ["image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK"]
    lesions = ["image,lesion_id"]
    for number in range(N_IMAGES):
        truth.append(f"ISIC_{number:02d},{'1,0' if number % 2 else '0,1'}{',0' * 7}")
        lesions.append(f"ISIC_{number:02d},HAM_{number:02d}")
    with running() as found:
        bodies = (pack_images(), "\n".join(lesions).encode(), "\n".join(truth).encode())
        for name, body in zip(NAMES, bodies, strict=True):
            found.add(f"/{name}", body)
        yield found


@pytest.fixture
def replica(project: Project, server: Server) -> Project:
    """A project whose ISIC 2019 comes from the server."""
    entry = yaml.safe_load((project.folder / "config/datasets.yaml").read_text())["isic2019"]
    for file in entry["release"]["files"]:
        file["urls"] = [server.url(f"/{file['name']}")]
        file.pop("rows", None)
    entry["release"]["expected"] = {"images": N_IMAGES, "classes": {"MEL": 12, "NV": 12}}
    (project.folder / "mine.yaml").write_text(yaml.safe_dump({"isic2019": entry}))
    return project


def test_a_release_is_fetched_verified_indexed_and_split_beside_the_users_files(replica, server):
    labels = replica.folder / "data/isic2019" / NAMES[2]
    labels.parent.mkdir(parents=True)
    labels.write_bytes(server.pages[f"/{NAMES[2]}"].body)
    before = (labels.stat().st_ino, labels.stat().st_mtime_ns)
    assert replica.ran(TARGET, *CONFIG).jobs == STAGES
    assert (labels.stat().st_ino, labels.stat().st_mtime_ns) == before
    assert server.sent(f"/{NAMES[2]}") == []
    assert pl.read_parquet(replica.folder / TARGET).height == N_IMAGES
    verdict = json.loads((replica.folder / "results/data/isic2019/verdict.json").read_text())
    assert verdict["verdict"] == "as released"
    assert verdict["images"]["decoded"] == N_IMAGES
    lock = json.loads((replica.folder / "data/isic2019.lock.json").read_text())
    assert set(lock) == set(NAMES[:2])

    # What was fetched is there now and must not look like a change; an edit of a label must.
    assert replica.ran("-n", TARGET, *CONFIG).jobs == {}
    labels.write_text(labels.read_text().replace("ISIC_01,1,0", "ISIC_01,0,1"))
    assert replica.ran("-n", TARGET, *CONFIG).jobs == STAGES
