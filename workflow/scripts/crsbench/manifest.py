"""The perturbation manifest: seed and pixel digest of every perturbed test image.

Extraction checks each perturbed image against it, so that the same pixels reach every encoder.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl

from crsbench.images import canonical_image
from crsbench.perturbations import manifest_rows
from crsbench.progress import progress

MANIFEST = pl.Schema(
    {
        "sample": pl.String(),
        "perturbation": pl.String(),
        "severity": pl.Int64(),
        "seed": pl.UInt64(),
        "pixels_sha256": pl.String(),
    }
)


def perturbation_manifest(
    images: pl.DataFrame,
    *,
    dataset: str,
    root: str | Path,
    perturbations: Sequence[str],
    severities: Mapping[str, Sequence[float]],
    max_side_px: int,
    threads: int,
) -> pl.DataFrame:
    """Perturb images under all conditions and record what came out.

    Parameters
    ----------
    images
        The images: ``sample``, and ``path`` relative to `root`.
    dataset
        Name of the dataset, part of every seed.
    perturbations, severities
        Names, and the strengths of each; the first is severity 1.
    max_side_px
        Longest side of the canonical image.
    threads
        Images that are perturbed at a time.

    Returns
    -------
    pl.DataFrame
        `MANIFEST`: one row for each image and condition, images in their given order.
    """

    def rows(image: tuple[str, str]) -> list[dict[str, str | int]]:
        sample, path = image
        return manifest_rows(
            canonical_image(Path(root) / path, max_side_px=max_side_px),
            dataset=dataset,
            sample=sample,
            perturbations=perturbations,
            severities=severities,
        )

    pairs = list(images.select("sample", "path").iter_rows())
    with ThreadPoolExecutor(max_workers=threads) as pool:
        made = progress(pool.map(rows, pairs), total=len(pairs), what="perturbing", unit="images")
        return pl.DataFrame([row for some in made for row in some], schema=MANIFEST)
