"""Features of perturbed test images: all conditions of an image from one decode.

Perturbed pixels are checked against the perturbation manifest before any encoder sees them. Apart
from `crsbench.features.extraction`, so that a change of a perturbation leaves clean features be.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from crsbench.encoders.weights import LoadedEncoder
from crsbench.errors import DataError
from crsbench.features.extraction import Compute, Features, Progress, extract, no_progress
from crsbench.images import canonical_image
from crsbench.manifest import check_pixels, expected_pixels
from crsbench.perturbations import Pixels, perturbed_images
from crsbench.perturbed_cache import PerturbedCache


def extract_perturbed(
    encoder: LoadedEncoder,
    index: pl.DataFrame,
    manifest: pl.DataFrame,
    *,
    dataset: str,
    severities: Mapping[str, Sequence[float]],
    root: str | Path,
    max_side_px: int,
    shards: str | Path,
    compute: Compute,
    cache: PerturbedCache | None = None,
    progress: Progress = no_progress,
) -> Features:
    """Extract the features of all images of a perturbation manifest under all its conditions.

    Parameters
    ----------
    encoder
        A loaded encoder.
    index
        At least the manifest's images: ``sample``, and ``path`` relative to `root`.
    manifest
        `crsbench.manifest.MANIFEST`: the same conditions for every sample.
    dataset
        Name of the dataset, part of every perturbation's seed.
    severities
        Strengths of each perturbation of the manifest; the first is severity 1.
    root, max_side_px, shards, compute, progress
        As for `extract_clean`; progress counts images, not conditions.
    cache
        Where perturbed images are looked for and put; without one they are made each time.

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
    expected = expected_pixels(manifest, severities=severities)
    names = manifest["perturbation"].unique(maintain_order=True).to_list()
    conditions = [(name, i + 1) for name in names for i in range(len(severities[name]))]
    paths = _paths(index, samples)

    def make(sample: str) -> Iterator[Pixels]:
        image = canonical_image(Path(root) / paths[sample], max_side_px=max_side_px)
        for perturbation, severity, _, pixels in perturbed_images(
            image,
            dataset=dataset,
            sample=sample,
            perturbations=names,
            severities=severities,
        ):
            check_pixels(
                pixels,
                expected[sample, perturbation, severity],
                dataset=dataset,
                sample=sample,
                perturbation=perturbation,
                severity=severity,
            )
            yield pixels

    def prepare(sample: str) -> Iterable[Pixels]:
        if cache is None:
            return make(sample)
        digests = [expected[sample, *condition] for condition in conditions]
        images = cache.read(digests)
        if images is None:
            images = list(make(sample))
            cache.write(digests, images)
        return images

    keys = _perturbed_keys(samples, conditions)
    return extract(
        encoder, keys, samples, prepare, shards=Path(shards), compute=compute, progress=progress
    )


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
