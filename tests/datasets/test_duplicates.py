"""Clusters and groups of duplicates, and the table that lists them."""

import random

import numpy as np
import polars as pl

from crsbench.datasets.duplicates import (
    DUPLICATES_SCHEMA,
    duplicates_table,
    find_similar,
    join_clusters,
    merge_groups,
)


def images(**positions: list[int] | None) -> pl.DataFrame:
    """Return images whose hashes have ones at the given positions; None: no hash."""
    table = {name: np.zeros(256, np.uint8) for name in positions}
    for name, ones in positions.items():
        table[name][ones or []] = 1
    digits = [
        None if positions[name] is None else np.packbits(row).tobytes().hex()
        for name, row in table.items()
    ]
    return pl.DataFrame(
        {"sample": list(positions), "perceptual_hash": digits},
        schema={"sample": pl.String, "perceptual_hash": pl.String},
    )


def index(**clusters: str | None) -> pl.DataFrame:
    schema = {"sample": pl.String, "duplicate_cluster": pl.String}
    return pl.DataFrame([*clusters.items()], schema=schema, orient="row")


def pairs(*rows: tuple[str, str, int]) -> pl.DataFrame:
    schema = {"sample": pl.String, "like": pl.String, "distance": pl.Int64}
    return pl.DataFrame(list(rows), schema=schema, orient="row")


def test_similar_images_are_named_with_their_distance():
    found = find_similar(images(c=[1], a=[1, 2, 3], b=[9, 20], d=None), max_distance=3)
    assert found.rows() == [("c", "a", 2), ("c", "b", 3)]


def test_an_image_without_a_hash_is_like_no_other():
    assert find_similar(images(a=None, b=None), max_distance=10).is_empty()


def test_nothing_is_looked_for_without_a_distance():
    assert find_similar(images(a=[1], b=[1]), max_distance=None).is_empty()


def test_clusters_are_what_hangs_together_and_have_the_name_of_the_first():
    joined = join_clusters(
        index(e="d", d="d", c=None, b=None, a=None, f=None),
        pairs(("c", "b", 2), ("d", "c", 4)),
    )
    assert joined.rows() == [("e", "b"), ("d", "b"), ("c", "b"), ("b", "b"), ("a", None),
                             ("f", None)]  # fmt: skip


def test_without_similar_images_the_clusters_of_identical_ones_stay():
    before = index(a="a", b="a", c=None)
    assert join_clusters(before, pairs()).equals(before)


def test_no_duplicates_are_no_clusters():
    before = index(a=None, b=None)
    assert join_clusters(before, pairs()).equals(before)


def test_the_order_of_images_and_pairs_changes_nothing():
    rows = [(f"s{i}", f"s{i // 2}", i % 3) for i in range(1, 30)]
    samples = [(f"s{i}", None) for i in range(40)]
    first = join_clusters(index(**dict(samples)), pairs(*rows)).sort("sample")
    random.Random(0).shuffle(rows)
    random.Random(1).shuffle(samples)
    second = join_clusters(index(**dict(samples)), pairs(*rows)).sort("sample")
    assert first.equals(second)


def test_a_cluster_puts_its_groups_under_the_name_of_the_first():
    frame = pl.DataFrame(
        {
            "sample": ["a", "b", "c", "d"],
            "group": ["p2", "p1", "p2", "p9"],
            "duplicate_cluster": ["a", "a", None, None],
        }
    )
    assert merge_groups(frame)["group"].to_list() == ["p1", "p1", "p1", "p9"]


def test_every_pair_is_listed_with_what_a_reader_needs_to_judge_it():
    samples = pl.DataFrame(
        {
            "sample": ["a", "b", "c", "d", "e"],
            "group": ["p1", "p1", "p2", "p3", "p4"],
            "labels": pl.Series([[0], [0], [1], [0], [1]], dtype=pl.List(pl.Int8)),
        }
    )
    table = duplicates_table(
        samples, identical={"a": ["a", "b", "c"]}, similar=pairs(("e", "d", 6))
    )
    assert table.schema == DUPLICATES_SCHEMA
    assert table.rows() == [
        ("b", "a", "identical", 0, True, True),
        ("c", "a", "identical", 0, False, False),
        ("e", "d", "similar", 6, False, False),
    ]


def test_the_table_has_its_columns_where_nothing_was_found():
    samples = pl.DataFrame(
        {"sample": ["a"], "group": ["p"], "labels": pl.Series([[0]], dtype=pl.List(pl.Int8))}
    )
    empty = duplicates_table(samples, identical={}, similar=pairs())
    assert empty.schema == DUPLICATES_SCHEMA
    assert empty.is_empty()
