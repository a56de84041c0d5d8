"""Features of perturbed test images: all conditions of an image from one decode.

Perturbed pixels are checked against the perturbation manifest before any encoder sees them. Apart
from `crsbench.features.extraction`, so that a change of a perturbation leaves clean features be.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl
import torch

from crsbench.encoders.transforms import build_transform
from crsbench.encoders.weights import LoadedEncoder
from crsbench.errors import DataError
from crsbench.features.extraction import Compute, Features, Progress, extract, no_progress
from crsbench.images import canonical_image
from crsbench.perturbations import check_pixels, perturbed_images


def extract_perturbed(
    encoder: LoadedEncoder,
    index: pl.DataFrame,
    manifest: pl.DataFrame,
    *,
    dataset: str,
    severities: Mapping[str, Sequence[float]],
    folder: str | Path,
    max_side_px: int,
    compute: Compute,
    progress: Progress = no_progress,
) -> Features:
    """Extract the features of all images of a perturbation manifest under all its conditions.

    Parameters
    ----------
    encoder
        A loaded encoder.
    index
        At least the manifest's images: ``sample``, and ``path`` relative to `folder`.
    manifest
        ``sample``, ``perturbation``, ``severity``, ``seed``, ``pixels_sha256``: the same
        conditions for every sample.
    dataset
        Name of the dataset, part of every perturbation's seed.
    severities
        Strengths of each perturbation of the manifest; the first is severity 1.
    folder, max_side_px, compute, progress
        As for `extract_clean`; progress counts images, not conditions.

    Returns
    -------
    Features
        Rows ordered by condition in the manifest's order, then by sample as in the manifest.

    Raises
    ------
    DataError
        An image cannot be decoded or is not indexed, the manifest has holes, the pixels of a
        condition are not those of the manifest, or a feature is not finite.
    """
    samples = manifest["sample"].unique(maintain_order=True).to_list()
    conditions = manifest.select("perturbation", "severity").unique(maintain_order=True).rows()
    expected = _expected_pixels(manifest, samples, conditions, severities)
    paths = _paths(index, samples)
    transform = build_transform(encoder.card.transform)

    def prepare(sample: str) -> list[torch.Tensor]:
        image = canonical_image(Path(folder) / paths[sample], max_side_px=max_side_px)
        tensors = {}
        for perturbation, severity, _, pixels in perturbed_images(
            image,
            dataset=dataset,
            sample=sample,
            perturbations=list(dict.fromkeys(name for name, _ in conditions)),
            severities=severities,
        ):
            key = (sample, perturbation, severity)
            check_pixels(
                pixels,
                expected[key],
                dataset=dataset,
                sample=sample,
                perturbation=perturbation,
                severity=severity,
            )
            tensors[perturbation, severity] = transform(pixels)
        return [tensors[condition] for condition in conditions]

    keys = _perturbed_keys(samples, conditions)
    step = len(samples)
    images = [(sample, list(range(i, len(keys), step))) for i, sample in enumerate(samples)]
    return extract(encoder, keys, images, prepare, compute, progress)


def _expected_pixels(
    manifest: pl.DataFrame,
    samples: Sequence[str],
    conditions: Sequence[tuple[str, int]],
    severities: Mapping[str, Sequence[float]],
) -> dict[tuple[str, str, int], str]:
    columns = ("sample", "perturbation", "severity", "pixels_sha256")
    expected = {(s, p, v): sha for s, p, v, sha in manifest.select(columns).iter_rows()}
    made = {
        (name, severity)
        for name in {name for name, _ in conditions}
        for severity in range(1, len(severities[name]) + 1)
    }
    if made != set(conditions):
        raise DataError(
            f"the perturbation manifest has conditions {sorted(conditions)}, the configuration "
            f"makes {sorted(made)}; make the manifest again"
        )
    holes = [(s, *c) for s in samples for c in conditions if (s, *c) not in expected]
    if holes or len(expected) != len(manifest):
        what = f"no row for {holes[0]}" if holes else "a repeated row"
        raise DataError(f"the perturbation manifest has {what}; make it again")
    return expected


def _paths(index: pl.DataFrame, samples: Sequence[str]) -> dict[str, str]:
    paths = dict(index.select("sample", "path").iter_rows())
    absent = [sample for sample in samples if sample not in paths]
    if absent:
        raise DataError(f"{absent[0]} is in the perturbation manifest but not in the index")
    return paths


def _perturbed_keys(samples: Sequence[str], conditions: Sequence[tuple[str, int]]) -> pl.DataFrame:
    rows = [(sample, *condition) for condition in conditions for sample in samples]
    schema = {"sample": pl.String, "perturbation": pl.String, "severity": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")
