"""Features of real images, as the workflow extracts them, for train splits of any size.

The encoders are the EfficientNet-Lites, whose weights are installed with the project: the first
columns of the 1,280 of one, or those of two beside each other.
"""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench.config import read_yaml
from crsbench.datasets.definitions import DatasetDefinition, load_adapter, load_definitions
from crsbench.encoders.cards import load_cards
from crsbench.encoders.weights import load_encoder, write_weights
from crsbench.features.extraction import Compute, extract_clean
from crsbench.probes.base import Features
from crsbench.splits import truth_matrix

CONFIG = Path(__file__).parents[1] / "config"
ENCODERS = ("efficientnet_lite0_224", "efficientnet_lite1_224")
#: Features of one of them.
WIDTH = 1_280
#: Images of a dataset that are looked at, evenly spread over it.
N_IMAGES = 500


def labelled_features(dataset: str, *, data_root: Path, d: int) -> tuple[Features, NDArray[Any]]:
    """Return d features of each of some hundred images, and their labels as a probe takes them."""
    definition = load_definitions([CONFIG / "datasets.yaml"], data_root=data_root)[dataset]
    samples = _some_samples(definition)
    parts = [_features(name, dataset, data_root) for name in ENCODERS[: -(-d // WIDTH)]]
    truth = truth_matrix(
        samples["labels"], task=definition.task, classes=definition.classes, uncertain="mask"
    )
    labels = truth if definition.task == "multilabel" else truth.argmax(axis=1)
    return np.hstack(parts)[:, :d], labels


def _some_samples(definition: DatasetDefinition) -> pl.DataFrame:
    samples = load_adapter(definition).read_listing(definition).samples.sort("sample")
    return samples[np.linspace(0, samples.height - 1, N_IMAGES).astype(int).tolist()]


@cache
def _features(encoder_name: str, dataset: str, data_root: Path) -> Features:
    definition = load_definitions([CONFIG / "datasets.yaml"], data_root=data_root)[dataset]
    card = load_cards([CONFIG / "encoders.yaml"])[encoder_name]
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.safetensors"
        write_weights(card, weights)
        shards = Path(folder) / "shards"
        shards.mkdir()
        features = extract_clean(
            load_encoder(card, weights),
            _some_samples(definition),
            root=definition.root,
            max_side_px=read_yaml(CONFIG / "config.yaml")["max_side_px"],
            shards=shards,
            compute=Compute(batch_size=32, threads=1, device="cpu"),
        )
        return np.array(features.values[:])
