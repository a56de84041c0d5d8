"""The perturbation manifest: seed and pixel digest of every perturbed test image.

Extraction checks each perturbed image against it, so that the same pixels reach every encoder.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl

from crsbench.errors import DataError
from crsbench.images import canonical_image
from crsbench.perturbations import Pixels, library_versions, perturbed_images, pixels_sha256
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


def manifest_rows(
    image: Pixels,
    *,
    dataset: str,
    sample: str,
    perturbations: Sequence[str],
    severities: Mapping[str, Sequence[float]],
) -> list[dict[str, str | int]]:
    """Return one image's rows of the perturbation manifest.

    Each has the keys ``sample``, ``perturbation``, ``severity``, ``seed`` (below 2^64) and
    ``pixels_sha256``.
    """
    conditions = perturbed_images(
        image,
        dataset=dataset,
        sample=sample,
        perturbations=perturbations,
        severities=severities,
    )
    return [
        {
            "sample": sample,
            "perturbation": perturbation,
            "severity": severity,
            "seed": seed,
            "pixels_sha256": pixels_sha256(perturbed),
        }
        for perturbation, severity, seed, perturbed in conditions
    ]


def expected_pixels(
    manifest: pl.DataFrame, *, severities: Mapping[str, Sequence[float]]
) -> dict[tuple[str, str, int], str]:
    """Return the pixel digest of each sample, perturbation and severity of a manifest.

    Parameters
    ----------
    manifest
        `MANIFEST`.
    severities
        Strengths of each perturbation, as configured; the first is severity 1.

    Raises
    ------
    DataError
        The manifest has other conditions than the configuration, a hole or a repeated row.
    """
    columns = ("sample", "perturbation", "severity", "pixels_sha256")
    expected = {(s, p, v): sha for s, p, v, sha in manifest.select(columns).iter_rows()}
    conditions = manifest.select("perturbation", "severity").unique(maintain_order=True).rows()
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
    samples = manifest["sample"].unique(maintain_order=True)
    holes = [(s, *c) for s in samples for c in conditions if (s, *c) not in expected]
    if holes or len(expected) != len(manifest):
        what = f"no row for {holes[0]}" if holes else "a repeated row"
        raise DataError(f"the perturbation manifest has {what}; make it again")
    return expected


def check_pixels(
    image: Pixels,
    expected_sha256: str,
    *,
    dataset: str,
    sample: str,
    perturbation: str,
    severity: int,
) -> None:
    """Raise `DataError` unless the pixels are those that the manifest records."""
    got = pixels_sha256(image)
    if got != expected_sha256:
        raise DataError(
            f"{dataset}/{sample}, {perturbation} severity {severity}: pixels have SHA-256 "
            f"{got[:16]}…, the perturbation manifest says {expected_sha256[:16]}…; the image "
            f"file or an imaging library changed (here: {library_versions()}): restore it, or "
            f"make the manifest and all perturbed features of {dataset} again"
        )
