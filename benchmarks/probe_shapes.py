"""The train splits that the probes are timed on: features and labels, and the cell's 25 subsets.

Synthetic features have a covariance that falls as 1/k, and a noisy linear teacher gives the labels.
Real ones are an encoder's features of some hundred images (`probe_images`), drawn by a smoothed
bootstrap until they are as many as the train split has: each is one of the images plus noise of
their own covariance. Without it they would be copies, which no train split has. Where labels are
not classes, a twentieth of them is masked in both.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crsbench.features.table import Standardiser
from crsbench.probes.base import Features, Subset
from crsbench.splits import Task
from probe_images import labelled_features

FRACTIONS = (0.01, 0.05, 0.10, 0.25, 1.0)
N_SEEDS = 5
#: Rows that a subset has at least.
FEWEST = 12
#: Standard deviation of the noise with the images' covariance, in theirs. Silverman's rule for the
#: kernel of a density says nearly 1 in so many dimensions.
BANDWIDTH = 0.5
#: The same of independent noise in each feature: the images span fewer dimensions than there are.
NOISE = 0.1
_BLOCK = 10_000
#: Share of labels that are masked.
MASKED = 0.05
#: The dataset with so many classes or labels.
DATASETS = {5: "aptos2019", 8: "isic2019", 14: "chexpert"}


class Shape(NamedTuple):
    """A train split, and how much of scikit-learn's work on it is timed.

    Attributes
    ----------
    n, d, n_classes
        Rows, features, classes or labels.
    task
        Labels are one class a row, or 1, 0 and NaN for each.
    seeds, columns
        Of 5 seeds and of the labels, those that scikit-learn is timed on; the rest is scaled.
    rounds
        How often all sides take their turn.
    source
        Where features come from.
    """

    n: int
    d: int
    n_classes: int
    task: Task
    seeds: int
    columns: int
    rounds: int
    source: Literal["synthetic", "real"] = "synthetic"

    def __str__(self) -> str:
        return f"{self.n:,} x {self.d:,} x {self.n_classes} {self.outputs}, {self.source}"

    @property
    def outputs(self) -> str:
        """What a column of logits stands for."""
        return "labels" if self.task == "multilabel" else "classes"


SHAPES = (
    Shape(256, 768, 5, "multiclass", seeds=5, columns=1, rounds=3),
    Shape(2_563, 768, 5, "multiclass", seeds=1, columns=1, rounds=3),
    Shape(17_700, 768, 8, "multiclass", seeds=1, columns=1, rounds=1),
    Shape(17_700, 1_152, 8, "multiclass", seeds=1, columns=1, rounds=1),
    Shape(134_000, 768, 14, "multilabel", seeds=1, columns=1, rounds=1),
    Shape(1_340, 2_560, 14, "multilabel", seeds=1, columns=3, rounds=3),
)


def make(shape: Shape, *, data_root: Path | None = None) -> tuple[Features, NDArray[Any]]:
    """Return standardised features ``(n, d)`` and labels as a probe takes them."""
    if shape.source == "synthetic":
        features, labels = _power_law(shape)
    else:
        features, labels = _resampled(shape, data_root)
    if shape.task == "multilabel":
        labels[np.random.default_rng(0).random(labels.shape) < MASKED] = np.nan
    Standardiser.fit(features).apply(features)
    return features, labels


def _power_law(shape: Shape) -> tuple[Features, NDArray[Any]]:
    rng = np.random.default_rng((shape.n, shape.d))
    scales = np.arange(1, shape.d + 1) ** -0.5
    latent = rng.standard_normal((shape.n, shape.d), dtype=np.float32) * scales.astype(np.float32)
    teacher = rng.standard_normal((shape.d, shape.n_classes)) * np.sqrt(scales)[:, None]
    scores = latent @ teacher.astype(np.float32)
    scores /= scores.std(axis=0)
    rotation = np.linalg.qr(rng.standard_normal((shape.d, shape.d)))[0]
    return latent @ rotation.astype(np.float32), _drawn_labels(shape, scores, rng)


def _drawn_labels(shape: Shape, scores: Features, rng: np.random.Generator) -> NDArray[Any]:
    """Draw classes or labels of unequal frequency."""
    offsets = np.linspace(0, 3, shape.n_classes)
    if shape.task == "multiclass":
        return (scores - offsets + rng.gumbel(size=scores.shape)).argmax(axis=1)
    return (scores - offsets - 1 + rng.logistic(size=scores.shape) > 0).astype(float)


def _resampled(shape: Shape, data_root: Path) -> tuple[Features, NDArray[Any]]:
    rng = np.random.default_rng((shape.n, shape.d))
    images, labels = labelled_features(DATASETS[shape.n_classes], data_root=data_root, d=shape.d)
    drawn = rng.integers(len(images), size=shape.n)
    features = rng.standard_normal((shape.n, shape.d), dtype=np.float32)
    features *= NOISE * images.std(axis=0)
    features += images[drawn]
    centred = (images - images.mean(axis=0)) * (BANDWIDTH / np.sqrt(len(images)))
    for first in range(0, shape.n, _BLOCK):
        block = features[first : first + _BLOCK]
        block += rng.standard_normal((len(block), len(images)), dtype=np.float32) @ centred
    return features, labels[drawn]


def subsets(n: int, *, seeds: int = N_SEEDS) -> Iterator[Subset]:
    """Yield the distinct training sets of a cell of n rows, nested for each seed."""
    for fraction in FRACTIONS:
        for seed in range(seeds if fraction < 1 else 1):
            order = np.random.default_rng(seed).permutation(n)
            yield Subset(fraction, seed, np.sort(order[: max(round(fraction * n), FEWEST)]))
