"""Drawn test cases: read from tables, drawn by group, alike in every job."""

import json

import numpy as np
import polars as pl
import pytest

from crsbench.case_sets import draw_label_seeds, read_drawn_cases
from crsbench.files import write_parquet
from crsbench.sides import Labels

METRICS = {"n_bins": 15, "specificity": 0.9, "binary_confidence": "positive"}
CLASSES = ["a", "b", "only in train"]


def write_index(path, samples, groups, labels):
    table = pl.DataFrame(
        {
            "sample": samples,
            "group": groups,
            "labels": [[v] for v in labels],
            "duplicate_cluster": pl.Series([None] * len(samples), dtype=pl.String),
        }
    )
    write_parquet(table, path, metadata={"task": "multiclass", "classes": json.dumps(CLASSES)})


@pytest.fixture
def files(tmp_path):
    samples = [f"s{place:02d}" for place in range(20)]
    groups = [f"g{place // 2}" for place in range(20)]
    sides = ["train"] * 8 + ["test"] * 12
    labels = [0, 1, 2, 0] * 2 + [0, 1] * 6
    write_index(tmp_path / "index.parquet", samples, groups, labels)
    write_index(tmp_path / "target.parquet", ["t0", "t1", "t2"], ["p", "p", "q"], [0, 1, 0])
    write_parquet(pl.DataFrame({"sample": samples, "side": sides}), tmp_path / "split.parquet")
    return tmp_path


def draw(files, dataset="skin", *, seed=0, n_replicates=6):
    index = files / "index.parquet"
    return read_drawn_cases(
        dataset,
        index=index,
        split=files / "split.parquet",
        shift={"elsewhere": files / "target.parquet"},
        labels=Labels.read(index, uncertain="mask"),
        metrics=METRICS,
        n_replicates=n_replicates,
        seed=seed,
    )


def counts(cases):
    return np.concatenate(cases.draws.blocks, axis=1)


def test_the_cases_are_the_test_side_and_all_of_the_target(files):
    cases = draw(files)
    assert list(cases) == ["skin", "elsewhere"]
    assert list(cases["skin"].side.samples) == [f"s{place:02d}" for place in range(8, 20)]
    assert list(cases["elsewhere"].side.samples) == ["t0", "t1", "t2"]


def test_groups_are_drawn_whole_and_as_many_as_there_are(files):
    cases = draw(files)
    assert cases["skin"].groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert cases["elsewhere"].groups.tolist() == [0, 0, 1]
    assert set(counts(cases["skin"]).sum(axis=0)) == {6}
    assert set(counts(cases["elsewhere"]).sum(axis=0)) == {2}


def test_a_class_that_is_absent_from_the_test_side_counts_nowhere(files):
    assert draw(files)["skin"].kept.tolist() == [True, True, False]


def test_two_jobs_draw_alike_and_other_names_and_seeds_do_not(files):
    first, again = draw(files), draw(files)
    for name in first:
        np.testing.assert_array_equal(counts(first[name]), counts(again[name]))
    assert not np.array_equal(counts(first["skin"]), counts(draw(files, "eye")["eye"]))
    assert not np.array_equal(counts(first["skin"]), counts(draw(files, seed=1)["skin"]))


def test_more_replicates_begin_with_the_same_ones(files):
    few, many = (counts(draw(files, n_replicates=n)["skin"]) for n in (3, 6))
    np.testing.assert_array_equal(few, many[:, :3])


def test_seeds_are_drawn_as_many_as_there_are_and_alike_in_every_job():
    first, again = (draw_label_seeds([3, 5, 8], n_replicates=40, seed=0) for _ in range(2))
    assert list(first) == [3, 5, 8]
    assert set(sum(first.values()).tolist()) == {3}
    for seed, drawn in first.items():
        np.testing.assert_array_equal(drawn, again[seed])
    other = draw_label_seeds([3, 5, 8], n_replicates=40, seed=1)
    assert any(not np.array_equal(first[seed], other[seed]) for seed in first)
