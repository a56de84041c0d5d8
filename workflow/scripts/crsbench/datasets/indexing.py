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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import polars as pl

from crsbench.datasets.definitions import DatasetDefinition, load_adapter, missing_data
from crsbench.datasets.duplicates import (
    duplicates_table,
    find_similar,
    join_clusters,
    merge_groups,
)
from crsbench.datasets.exclusions import without_accepted
from crsbench.datasets.tables import EXCLUSIONS_SCHEMA, LISTING_SCHEMA, NO_LABEL, excluded
from crsbench.digests import digest, frame_digest
from crsbench.errors import DataError

#: `sha256` is that of the image file, null where verification did not read it: other pixels,
#: another index.
INDEX_SCHEMA = pl.Schema(LISTING_SCHEMA | {"duplicate_cluster": pl.String(), "sha256": pl.String()})

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexResult:
    """The index of a dataset, sorted by sample, and what was left out or alike."""

    index: pl.DataFrame
    exclusions: pl.DataFrame
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
    images: pl.DataFrame,
    *,
    conflicting_labels: Literal["drop_conflicting", "keep"],
    near_duplicates: int | None,
) -> IndexResult:
    """Index a dataset: labels, duplicates, what is left out. No image is touched.

    Parameters
    ----------
    definition
        The dataset.
    images
        What verification saw (`IMAGES_SCHEMA`).
    conflicting_labels
        What happens to byte-identical images with different labels: all are dropped and listed,
        or all are kept in one group.
    near_duplicates
        In how many of 256 bits the perceptual hashes of two images may differ for them to be kept
        in one group; None looks for identical files only. It needs a decode of all images.

    Returns
    -------
    IndexResult
        Index (`INDEX_SCHEMA`), exclusions (`EXCLUSIONS_SCHEMA`) and pairs of duplicates
        (`crsbench.datasets.duplicates.DUPLICATES_SCHEMA`).

    Raises
    ------
    DataError
        Data are missing, label files are wrong, or images were not verified.
    """
    message = missing_data(definition)
    if message is not None:
        raise DataError(message)
    listing = load_adapter(definition).read_listing(definition)
    samples, accepted = without_accepted(listing.samples.sort("sample"), definition)
    _check_images(samples, images, definition)
    clusters = _find_duplicates(images)
    digests = images.select("sample", "sha256").drop_nulls("sample")
    index = _with_clusters(samples, clusters).join(
        digests, on="sample", how="left", maintain_order="left"
    )
    index, conflicts = _resolve_conflicts(index, definition, policy=conflicting_labels)
    similar = _find_similar(images, index, definition, near_duplicates)
    index = merge_groups(join_clusters(index, similar))
    unlabelled = excluded(images.filter(pl.col("sample").is_null()), reason=NO_LABEL)
    exclusions = pl.concat([listing.exclusions, accepted, conflicts, unlabelled])
    if index.is_empty():
        raise DataError(f"{definition.name}: no image is left after {exclusions.height} exclusions")
    return IndexResult(
        index=index.select(INDEX_SCHEMA.names()).sort("sample"),
        exclusions=exclusions.sort("reason", "sample", "path", nulls_last=True),
        duplicates=duplicates_table(samples, identical=clusters, similar=similar),
    )


def _check_images(
    samples: pl.DataFrame, images: pl.DataFrame, definition: DatasetDefinition
) -> None:
    """Raise unless the table of verified images has every labelled one."""
    unseen = samples.join(images, on=["sample", "path"], how="anti")
    if not unseen.is_empty():
        raise DataError(
            f"{definition.name}: {unseen.height} labelled images were not verified, such as "
            f"{unseen['path'][0]}; labels have changed since; verify the data again"
        )


def _find_duplicates(images: pl.DataFrame) -> dict[str, list[str]]:
    """Return the samples of each set of byte-identical files, keyed by the first of them."""
    sets = (
        images.filter(pl.col("sha256").is_not_null() & pl.col("sample").is_not_null())
        .group_by("bytes", "sha256")
        .agg(pl.col("sample").sort())
        .filter(pl.col("sample").list.len() > 1)
    )
    return {samples[0]: samples for samples in sets["sample"].sort().to_list()}


def _find_similar(
    images: pl.DataFrame,
    index: pl.DataFrame,
    definition: DatasetDefinition,
    max_distance: int | None,
) -> pl.DataFrame:
    """Return the pairs of the index that look alike; of identical images the first is compared."""
    cluster = pl.col("duplicate_cluster")
    compared = index.filter(cluster.is_null() | (cluster == pl.col("sample")))
    images = images.join(compared, on="sample", how="semi")
    if max_distance is not None and (images["decoded"] != "yes").any():
        _LOG.warning(
            "%s: images that look alike are not looked for, since not all were decoded; with "
            "verify: full they are",
            definition.name,
        )
        max_distance = None
    return find_similar(images, max_distance=max_distance)


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
