"""Duplicates: images that are the same or look the same, and what follows for groups.

- Images that share a duplicate cluster stand in one group, so that no copy is on another side.
- A cluster is whatever hangs together through pairs: identical files, or similar pictures.
- Looking alike is a guess, so it joins groups and drops nothing; every guess is listed.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from crsbench.likeness import similar_pairs

#: A pair of images. `distance` counts the bits in which their perceptual hashes differ.
DUPLICATES_SCHEMA = pl.Schema(
    {
        "sample": pl.String(),
        "like": pl.String(),
        "kind": pl.String(),
        "distance": pl.Int64(),
        "same_group": pl.Boolean(),
        "same_labels": pl.Boolean(),
    }
)
_PAIRS_SCHEMA = pl.Schema({"sample": pl.String(), "like": pl.String(), "distance": pl.Int64()})


def find_similar(images: pl.DataFrame, *, max_distance: int | None) -> pl.DataFrame:
    """Find the images that look alike.

    Parameters
    ----------
    images
        ``sample`` and ``perceptual_hash``; an image without a hash is like no other.
    max_distance
        In how many of 256 bits the hashes may differ; None finds nothing.

    Returns
    -------
    DataFrame
        ``sample``, ``like`` (the first of the two) and ``distance``, sorted; enough pairs to join
        each cluster, not all of them (`crsbench.likeness.similar_pairs`).
    """
    hashed = images.drop_nulls("perceptual_hash").sort("sample")
    if max_distance is None or hashed.is_empty():
        return _PAIRS_SCHEMA.to_frame()
    digits = "".join(hashed["perceptual_hash"])
    hashes = np.frombuffer(bytes.fromhex(digits), np.uint8).reshape(hashed.height, -1)
    pairs, distances = similar_pairs(hashes, max_distance=max_distance)
    names = hashed["sample"]
    return pl.DataFrame(
        {"sample": names[pairs[:, 1]], "like": names[pairs[:, 0]], "distance": distances},
        schema=_PAIRS_SCHEMA,
    ).sort("sample", "like")


def join_clusters(index: pl.DataFrame, similar: pl.DataFrame) -> pl.DataFrame:
    """Join the clusters of similar images, each under the name of its first sample.

    Parameters
    ----------
    index
        ``sample`` and ``duplicate_cluster``, where identical images have one already.
    similar
        As `find_similar` returns it, of samples in the index.
    """
    identical = index.drop_nulls("duplicate_cluster").select("sample", like="duplicate_cluster")
    pairs = pl.concat([identical, similar.select("sample", "like")])
    names = pl.concat([pairs["sample"], pairs["like"]]).unique().sort()
    ends = [pairs[end].replace_strict(names, range(len(names))) for end in ("sample", "like")]
    links = coo_array((np.ones(len(pairs)), ends), shape=(len(names), len(names)))
    _, component = connected_components(links, directed=False)
    clusters = pl.DataFrame({"sample": names, "component": component}).select(
        "sample", duplicate_cluster=pl.col("sample").min().over("component")
    )
    return index.drop("duplicate_cluster").join(
        clusters, on="sample", how="left", maintain_order="left"
    )


def merge_groups(index: pl.DataFrame) -> pl.DataFrame:
    """Join the groups that share a duplicate cluster, under the name of the first of them."""
    parent: dict[str, str] = {}

    def find(group: str) -> str:
        while (above := parent.get(group, group)) != group:
            group = above
        return group

    shared = index.filter(pl.col("duplicate_cluster").is_not_null())
    for (_,), cluster in shared.group_by("duplicate_cluster"):
        roots = sorted({find(group) for group in cluster["group"]})
        parent.update(dict.fromkeys(roots, roots[0]))
    merged = {group: find(group) for group in shared["group"].unique()}
    return index.with_columns(pl.col("group").replace(merged))


def duplicates_table(
    samples: pl.DataFrame, *, identical: Mapping[str, Sequence[str]], similar: pl.DataFrame
) -> pl.DataFrame:
    """List the pairs that were found, with what a reader needs to judge them.

    Parameters
    ----------
    samples
        ``sample``, ``group`` and ``labels`` of all images, before any is dropped.
    identical
        The samples of each set of identical files, keyed by the first of them.
    similar
        As `find_similar` returns it.

    Returns
    -------
    DataFrame
        `DUPLICATES_SCHEMA`, sorted by sample. ``kind`` is ``identical`` (distance 0) or
        ``similar``.
    """
    copies = [(copy, first, 0) for first, copies in identical.items() for copy in copies[1:]]
    pairs = pl.concat(
        [
            pl.DataFrame(copies, schema=_PAIRS_SCHEMA, orient="row").with_columns(
                kind=pl.lit("identical")
            ),
            similar.with_columns(kind=pl.lit("similar")),
        ]
    )
    about = samples.select("sample", "group", "labels")
    both = pairs.join(about, on="sample").join(
        about.rename({"sample": "like"}), on="like", suffix="_of_like"
    )
    same = {
        f"same_{what}": pl.col(column) == pl.col(f"{column}_of_like")
        for what, column in (("group", "group"), ("labels", "labels"))
    }
    return (
        both.with_columns(**same)
        .select(DUPLICATES_SCHEMA.names())
        .cast(DUPLICATES_SCHEMA)
        .sort("sample", "like")
    )
