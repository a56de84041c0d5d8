"""The index of a dataset: one table of its usable images, and what was left out.

The law of an index:

- One row is one image that can be used; whatever else was found stands in the exclusions, by name
  where something is wrong with it, and as a count where a rule of the protocol leaves it out.
- The order of rows, files and columns changes nothing.
- Images that are identical or look alike share a duplicate cluster, and a cluster lies within one
  group.
"""

import json
import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from crsbench.datasets.definitions import DatasetDefinition, load_adapter, missing_data
from crsbench.datasets.duplicates import (
    duplicates_table,
    find_similar,
    join_clusters,
    merge_groups,
)
from crsbench.datasets.tables import (
    EXCLUSIONS_SCHEMA,
    LISTING_SCHEMA,
    ROW,
    Listing,
    excluded,
    read_table,
    without_repeats,
)
from crsbench.digests import digest, frame_digest
from crsbench.errors import DataError
from crsbench.files import sha256_file, write_csv
from crsbench.images import SUFFIXES, ImageReport, inspect_images
from crsbench.progress import progress

#: `sha256` is that of the image file, null with ``verify: size``: other pixels, another index.
INDEX_SCHEMA = pl.Schema(LISTING_SCHEMA | {"duplicate_cluster": pl.String(), "sha256": pl.String()})
IMAGES_SCHEMA = pl.Schema(
    {
        "sample": pl.String(),
        "path": pl.String(),
        "bytes": pl.Int64(),
        "mode": pl.String(),
        "width_px": pl.Int64(),
        "height_px": pl.Int64(),
        "sha256": pl.String(),
        "perceptual_hash": pl.String(),
        "note": pl.String(),
    }
)

_LOG = logging.getLogger(__name__)
_N_SHOWN = 3


@dataclass(frozen=True)
class IndexResult:
    """The index of a dataset, sorted by sample, and what was left out, converted or alike."""

    index: pl.DataFrame
    exclusions: pl.DataFrame
    images: pl.DataFrame
    duplicates: pl.DataFrame


def index_metadata(definition: DatasetDefinition, index: pl.DataFrame) -> dict[str, str]:
    """Return the metadata of an index file: dataset, task, classes, and a digest of it all."""
    identity = {
        "dataset": definition.name,
        "task": definition.task,
        "classes": json.dumps(definition.classes),
    }
    return identity | {"index_digest": digest("index", *identity.values(), frame_digest(index))}


def build_index(
    definition: DatasetDefinition,
    *,
    conflicting_labels: Literal["drop_conflicting", "keep"],
    near_duplicates: int | None,
    verify: Literal["full", "size"],
    threads: int,
    unusable: Path,
) -> IndexResult:
    """Index a dataset: labels, files, damage, duplicates.

    Parameters
    ----------
    definition
        The dataset.
    conflicting_labels
        What happens to byte-identical images with different labels: all are dropped and listed,
        or all are kept in one group.
    near_duplicates
        In how many of 256 bits the perceptual hashes of two images may differ for them to be kept
        in one group; None looks for identical files only. It needs ``verify: full``.
    verify
        Decode every image (``full``), or only see that it is there and not empty (``size``).
    threads
        How many images are decoded at a time.
    unusable
        CSV that is written when images are missing or damaged. Its rows are what a definition's
        ``exclusions`` accepts.

    Returns
    -------
    IndexResult
        Index (`INDEX_SCHEMA`), exclusions (`EXCLUSIONS_SCHEMA`), images (`IMAGES_SCHEMA`) and
        pairs of duplicates (`crsbench.datasets.duplicates.DUPLICATES_SCHEMA`).

    Raises
    ------
    DataError
        Data are missing, label files are wrong, or images are missing or damaged and not accepted.
    """
    message = missing_data(definition)
    if message is not None:
        raise DataError(message)
    listing = load_adapter(definition).read_listing(definition)
    _check_listing(listing.samples, definition)
    sizes = _find_images(definition.root, listing.folders)
    samples, accepted = _without_accepted(listing.samples.sort("sample"), definition)
    images, problems = _inspect(samples, sizes, definition, verify=verify, threads=threads)
    if not problems.is_empty():
        _refuse(problems, samples.height, definition, unusable)
    clusters = _find_duplicates(images, definition.root)
    digests = images.select("sample", "sha256")
    index = _with_clusters(samples, clusters).join(
        digests, on="sample", how="left", maintain_order="left"
    )
    index, conflicts = _resolve_conflicts(index, definition, policy=conflicting_labels)
    similar = _find_similar(images, index, definition, near_duplicates, verify=verify)
    index = merge_groups(join_clusters(index, similar))
    unlabelled = _unlabelled(listing, sizes)
    exclusions = pl.concat([listing.exclusions, accepted, conflicts, unlabelled])
    if index.is_empty():
        raise DataError(f"{definition.name}: no image is left after {exclusions.height} exclusions")
    return IndexResult(
        index=index.select(INDEX_SCHEMA.names()).sort("sample"),
        exclusions=exclusions.sort("reason", "sample", "path", nulls_last=True),
        images=images,
        duplicates=duplicates_table(samples, identical=clusters, similar=similar),
    )


def _check_listing(samples: pl.DataFrame, definition: DatasetDefinition) -> None:
    """Raise where an adapter broke its promise: a fault of the program, not of the data."""
    n_labels = len(definition.classes) if definition.task == "multilabel" else 1
    wrong_length = samples.filter(pl.col("labels").list.len() != n_labels)
    if samples.schema != LISTING_SCHEMA or not wrong_length.is_empty():
        raise TypeError(f"adapter {definition.adapter}: {samples.schema}, {n_labels} labels a row")
    if samples["sample"].n_unique() != samples.height:
        raise TypeError(f"adapter {definition.adapter}: a sample is listed twice")


def _find_images(root: Path, folders: Iterable[Path]) -> dict[str, int]:
    """Return the size in bytes of every image file in the folders, by its path below the root."""
    sizes: dict[str, int] = {}
    to_visit = [(str(top), top.relative_to(root).as_posix()) for top in folders if top.is_dir()]
    while to_visit:
        folder, below_root = to_visit.pop()
        with os.scandir(folder) as entries:  # not Path.iterdir: 400,000 files
            for entry in entries:
                path = entry.name if below_root == "." else f"{below_root}/{entry.name}"
                if entry.is_dir():
                    to_visit.append((entry.path, path))
                elif os.path.splitext(path)[1].lower() in SUFFIXES:  # noqa: PTH122
                    with suppress(FileNotFoundError):  # a link to nothing is no file
                        sizes[path] = entry.stat().st_size
    return sizes


def _without_accepted(
    samples: pl.DataFrame, definition: DatasetDefinition
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Take out the images whose loss is accepted."""
    path = definition.exclusions
    if path is None:
        return samples, EXCLUSIONS_SCHEMA.to_frame()
    if not path.is_file():
        raise DataError(f"{definition.name}: exclusions: {path} does not exist")
    table = read_table(path, required=["sample", "reason"])
    accepted, _ = without_repeats(table, path, key="sample")
    unknown = accepted.join(samples, on="sample", how="anti")
    if not unknown.is_empty():
        raise DataError(
            f"{path}: sample {unknown['sample'][0]!r} in row {unknown[ROW][0]} is not among the "
            f"labelled images of {definition.name}; remove the row"
        )
    reasons = accepted.select("sample", reason=pl.format("accepted: {}", "reason"))
    left_out = samples.join(reasons, on="sample", how="inner")
    kept = samples.join(reasons, on="sample", how="anti", maintain_order="left")
    return kept, excluded(left_out, reason=pl.col("reason"))


def _inspect(
    samples: pl.DataFrame,
    sizes: Mapping[str, int],
    definition: DatasetDefinition,
    *,
    verify: Literal["full", "size"],
    threads: int,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what was seen of each image, and which of them cannot be used."""
    there = samples.filter(pl.col("path").is_in(sizes.keys()))
    absent = samples.join(there, on="sample", how="anti")
    paths = [definition.root / path for path in there["path"]]
    if verify == "full":
        reports = progress(
            inspect_images(paths, threads=threads),
            total=len(paths),
            what=f"decoding {definition.name}",
            unit="images",
        )
    else:
        reports = (_sized(sizes[path]) for path in there["path"])
    columns = [*IMAGES_SCHEMA.names()[2:], "problem"]
    seen = pl.DataFrame(
        [[getattr(report, name) for name in columns] for report in reports],
        schema={name: IMAGES_SCHEMA.get(name, pl.String()) for name in columns},
        orient="row",
    )
    images = pl.concat([there.select("sample", "path"), seen], how="horizontal")
    damaged = images.filter(pl.col("problem").is_not_null())
    problems = [
        excluded(absent, reason="no such file"),
        excluded(damaged, reason=pl.col("problem")),
    ]
    return images.select(IMAGES_SCHEMA.names()), pl.concat(problems).sort("sample")


def _sized(n_bytes: int) -> ImageReport:
    return ImageReport(n_bytes, None, None, None, "", None if n_bytes else "zero bytes")


def _refuse(
    problems: pl.DataFrame, n_samples: int, definition: DatasetDefinition, path: Path
) -> None:
    write_csv(problems, path)
    shown = "; ".join(f"{row[1]}: {row[2]}" for row in problems.head(_N_SHOWN).iter_rows())
    n_absent = problems.filter(pl.col("reason") == "no such file").height
    raise DataError(
        f"{definition.name}: {problems.height} of {n_samples} images in {definition.root} cannot "
        f"be used, {n_absent} because there is no file, {problems.height - n_absent} because they "
        f"are damaged ({shown}{'; …' if problems.height > _N_SHOWN else ''}). {path} lists all. "
        "Get or repair them; or accept their loss: copy that file to a place of yours and name it "
        f"under `exclusions:` in the definition of {definition.name}"
    )


def _find_duplicates(images: pl.DataFrame, root: Path) -> dict[str, list[str]]:
    """Return the samples of each set of byte-identical files, keyed by the first of them.

    Only files of equal size are read, if they have not been.
    """
    rivals = images.filter(pl.col("bytes").is_duplicated())
    identical: dict[tuple[int, str], list[str]] = defaultdict(list)
    rows = rivals.select("sample", "path", "bytes", "sha256").sort("sample").iter_rows()
    for sample, path, n_bytes, sha256 in progress(
        rows, total=rivals.height, what="comparing files of equal size", unit="files"
    ):
        identical[n_bytes, sha256 or sha256_file(root / path)].append(sample)
    return {samples[0]: samples for samples in identical.values() if len(samples) > 1}


def _find_similar(
    images: pl.DataFrame,
    index: pl.DataFrame,
    definition: DatasetDefinition,
    max_distance: int | None,
    *,
    verify: Literal["full", "size"],
) -> pl.DataFrame:
    """Return the pairs of the index that look alike; of identical images the first is compared."""
    if max_distance is not None and verify != "full":
        _LOG.warning(
            "%s: images that look alike are not looked for, since verify: %s does not decode all "
            "images; with verify: full they are",
            definition.name,
            verify,
        )
        max_distance = None
    cluster = pl.col("duplicate_cluster")
    compared = index.filter(cluster.is_null() | (cluster == pl.col("sample")))
    return find_similar(images.join(compared, on="sample", how="semi"), max_distance=max_distance)


def _with_clusters(samples: pl.DataFrame, clusters: Mapping[str, list[str]]) -> pl.DataFrame:
    members = {sample: name for name, cluster in clusters.items() for sample in cluster}
    cluster = pl.col("sample").replace_strict(
        list(members), list(members.values()), default=None, return_dtype=pl.String
    )
    return samples.with_columns(duplicate_cluster=cluster)


def _resolve_conflicts(
    index: pl.DataFrame,
    definition: DatasetDefinition,
    *,
    policy: Literal["drop_conflicting", "keep"],
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Drop and list all images of a cluster whose labels differ, if that is the policy."""
    if policy == "keep":
        return index, EXCLUSIONS_SCHEMA.to_frame()
    n_labels = pl.col("labels").n_unique().over("duplicate_cluster")
    conflicts = index.filter(pl.col("duplicate_cluster").is_not_null() & (n_labels > 1))
    named = [_label_text(labels, definition) for labels in conflicts["labels"]]
    reason = pl.format(
        "identical images with different labels (cluster {}): {}",
        "duplicate_cluster",
        pl.Series("labels", named, dtype=pl.String),
    )
    kept = index.join(conflicts, on="sample", how="anti", maintain_order="left")
    return kept, excluded(conflicts, reason=reason)


def _label_text(labels: Iterable[int], definition: DatasetDefinition) -> str:
    if definition.task != "multilabel":
        return " ".join(definition.classes[label] for label in labels)
    named = zip(definition.classes, labels, strict=True)
    return " ".join(f"{name}={label}" for name, label in named if label) or "no finding"


def _unlabelled(listing: Listing, sizes: Mapping[str, int]) -> pl.DataFrame:
    known = listing.filtered.union(listing.samples["path"])
    paths = sorted(path for path in sizes if path not in known)
    frame = pl.DataFrame({"path": paths}, schema={"path": pl.String}).with_columns(
        sample=pl.lit(None, pl.String)
    )
    return excluded(frame, reason="no label")
