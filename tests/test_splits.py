"""Splits and subsamples: grouped, stratified, nested, and the same for any order of rows."""

from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest

from crsbench.errors import DataError
from crsbench.splits import (
    SIDES,
    check_no_leak,
    class_notes,
    dropped_classes,
    label_subsamples,
    split_index,
    truth_matrix,
)

SHARES = {"train": 0.7, "calibration": 0.1, "test": 0.2}
FRACTIONS = [0.01, 0.05, 0.10, 0.25, 1.0]
FINDINGS = ["Edema", "Fracture", "Atelectasis", "No Finding"]


def index(groups: Sequence[str], labels: Sequence[Sequence[int]]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "sample": [f"s{position:05d}" for position in range(len(groups))],
            "group": groups,
            "labels": pl.Series(labels, dtype=pl.List(pl.Int8)),
            "duplicate_cluster": pl.Series([None] * len(groups), dtype=pl.String),
        }
    )


def multiclass_index(counts: Sequence[int], *, images_per_group: int = 1) -> pl.DataFrame:
    labels = np.repeat(np.arange(len(counts)), counts)
    places = np.concatenate([np.arange(count) // images_per_group for count in counts])
    groups = [f"{label}-{place}" for label, place in zip(labels, places, strict=True)]
    return index(groups, labels[:, None].tolist())


def multilabel_index(n_samples: int, *, seed: int = 0) -> pl.DataFrame:
    """Return patients with one to four images; Edema is rare, Atelectasis often uncertain."""
    random = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_samples), random.integers(1, 5, n_samples))[:n_samples]
    value = random.random((n_samples, 4))
    positive = value < [0.02, 0.3, 0.2, 0.4]
    uncertain = ~positive & (value < [0.02, 0.3, 0.4, 0.4])
    return index([f"p{group}" for group in groups], np.where(uncertain, -1, positive).tolist())


def split(frame: pl.DataFrame, **changes):
    choices = {
        "dataset": "clinic",
        "task": "multiclass",
        "classes": ["a", "b", "c"],
        "shares": SHARES,
        "seed": 0,
    }
    return split_index(frame, **{**choices, **changes})


def split_findings(frame: pl.DataFrame, **changes):
    return split(frame, task="multilabel", classes=FINDINGS, **changes)


def notes_on_classes(frame: pl.DataFrame, result) -> list[str]:
    return class_notes(
        frame, result.split, task="multiclass", classes=["a", "b", "c"], uncertain="mask"
    )


def sides_by_class(frame: pl.DataFrame, result) -> dict[int, dict[str, int]]:
    joined = frame.join(result.split, on="sample").with_columns(pl.col("labels").list.first())
    counts = joined.group_by("labels", "side").len()
    return {
        label: {side: n for _, side, n in counts.filter(labels=label).rows()}
        for label in joined["labels"].unique()
    }


# --- The split ------------------------------------------------------------------------------------


def test_every_sample_is_on_exactly_one_side():
    frame = multiclass_index([50, 30, 20])
    result = split(frame)
    assert result.split["sample"].to_list() == frame["sample"].to_list()
    assert set(result.split["side"]) == set(SIDES)


def test_single_images_are_split_to_the_wanted_shares_of_every_class():
    frame = multiclass_index([500, 300, 20])
    assert sides_by_class(frame, split(frame)) == {
        0: {"train": 350, "test": 100, "calibration": 50},
        1: {"train": 210, "test": 60, "calibration": 30},
        2: {"train": 14, "test": 4, "calibration": 2},
    }


@pytest.mark.parametrize("images_per_group", [2, 5])
def test_a_group_is_never_on_two_sides(images_per_group):
    frame = multiclass_index([300, 200, 100], images_per_group=images_per_group)
    result = split(frame)
    joined = frame.join(result.split, on="sample")
    assert joined.group_by("group").agg(pl.col("side").n_unique())["side"].max() == 1
    shares = dict(joined["side"].value_counts(normalize=True).rows())
    assert shares == pytest.approx(SHARES, abs=0.01)


def test_findings_are_spread_by_patient_with_equal_prevalence():
    frame = multilabel_index(3000)
    result = split_findings(frame)
    joined = frame.join(result.split, on="sample")
    assert joined.group_by("group").agg(pl.col("side").n_unique())["side"].max() == 1
    for value in (1, -1):
        of_all = (np.array(frame["labels"].to_list()) == value).mean(axis=0)
        for side in SIDES:
            labels = np.array(joined.filter(side=side)["labels"].to_list())
            np.testing.assert_allclose((labels == value).mean(axis=0), of_all, atol=0.006)


def test_the_order_of_rows_changes_nothing():
    frame = multilabel_index(400)
    shuffled = frame.sample(fraction=1, shuffle=True, seed=1)
    assert split_findings(frame).split.equals(split_findings(shuffled).split)


def test_the_split_depends_on_dataset_and_seed():
    frame = multiclass_index([50, 30, 20])
    splits = [split(frame), split(frame, seed=1), split(frame, dataset="other")]
    drawn = {tuple(result.split["side"]) for result in splits}
    assert len(drawn) == 3
    assert split(frame).split.equals(splits[0].split)


@pytest.mark.parametrize(
    ("n_rare", "sides"),
    [(1, {"train"}), (2, {"train", "test"}), (3, {"train", "test", "calibration"})],
)
def test_a_rare_class_is_represented_as_well_as_it_can_be(n_rare, sides):
    frame = multiclass_index([60, 40, n_rare])
    result = split(frame)
    assert sides_by_class(frame, result)[2].keys() == sides
    noted = [note for note in notes_on_classes(frame, result) if note.startswith("c: ")]
    expected = {
        1: ["c: dropped from the averages, no positive in test"],
        2: ["c: no positive in calibration"],
        3: [],
    }
    assert noted == expected[n_rare]


def test_a_class_without_images_is_noted_as_dropped():
    frame = multiclass_index([60, 40])
    noted = notes_on_classes(frame, split(frame))
    assert noted == ["c: dropped from the averages, no positive in train"]


def test_a_side_that_is_far_from_its_share_is_noted():
    groups = [f"g{position // 30}" for position in range(300)]
    result = split(index(groups, [[0]] * 150 + [[1]] * 150), shares={
        "train": 0.05, "calibration": 0.05, "test": 0.9,
    })  # fmt: skip
    sizes = dict(result.split["side"].value_counts().rows())
    assert sizes == {"train": 60, "calibration": 60, "test": 180}
    assert result.notes[0] == "train: 60 images where 15 were wanted; groups are large"
    assert len(result.notes) == 3


@pytest.mark.parametrize("groups", [["g"] * 5, ["g", "h"] * 3, []])
def test_fewer_groups_than_sides_are_an_error(groups):
    frame = index(groups, [[0]] * len(groups))
    with pytest.raises(
        DataError, match=rf"clinic: {len(groups)} images in \d groups cannot be spl"
    ):
        split(frame)


def test_three_groups_of_one_class_are_enough():
    result = split(index(["g", "h", "i"], [[0]] * 3))
    assert set(result.split["side"]) == set(SIDES)


def test_a_side_without_images_is_an_error():
    with pytest.raises(DataError, match="clinic: 3 images in 3 groups leave none for calibration"):
        split(index(["g", "h", "i"], [[0], [1], [0]]))


def test_a_torn_group_or_duplicate_is_an_error():
    frame = index(["g", "g", "h"], [[0]] * 3)
    sides = pl.DataFrame({"sample": frame["sample"], "side": ["train", "test", "test"]})
    with pytest.raises(DataError, match="split: 1 of group on two sides, such as 'g'"):
        check_no_leak(frame, sides)
    twins = frame.with_columns(group="sample", duplicate_cluster=pl.Series(["c", "c", None]))
    with pytest.raises(DataError, match="split: 1 of duplicate_cluster on two sides, such as 'c'"):
        check_no_leak(twins, sides)
    with pytest.raises(DataError, match="different samples"):
        check_no_leak(frame, sides.head(2))


def test_the_metadata_tell_two_splits_apart():
    frame = multiclass_index([50, 30, 20])
    first, second = split(frame), split(frame, seed=1)
    about = first.metadata(index_digest="x")
    assert about["index_digest"] == "x"
    assert about["notes"] == "[]"
    assert about["split_digest"] != second.metadata(index_digest="x")["split_digest"]


# --- Label subsamples -----------------------------------------------------------------------------


def subsamples(frame: pl.DataFrame, result, **changes) -> pl.DataFrame:
    choices = {
        "dataset": "clinic",
        "task": "multiclass",
        "classes": ["a", "b", "c"],
        "label_fractions": FRACTIONS,
        "seeds": [0, 1],
        "uncertain": "mask",
    }
    return label_subsamples(frame, result.split, **{**choices, **changes})


def of_fraction(drawn: pl.DataFrame, frame: pl.DataFrame, *, seed: int, fraction: float):
    held = drawn.filter((pl.col("seed") == seed) & (pl.col("label_fraction") <= fraction))
    return frame.join(held, on="sample", how="semi")


def test_subsamples_have_the_stated_sizes_and_only_training_samples():
    frame = multiclass_index([1000, 600, 60])
    result = split(frame)
    drawn = subsamples(frame, result)
    train = result.split.filter(side="train")
    n_train = train.height
    for seed in (0, 1):
        for fraction in FRACTIONS:
            held = of_fraction(drawn, frame, seed=seed, fraction=fraction)
            assert held.height == int(fraction * n_train + 0.5)
            assert set(held["sample"]) <= set(train["sample"])
    assert drawn.schema == {"seed": pl.Int64, "sample": pl.String, "label_fraction": pl.Float64}


def test_subsamples_are_stratified():
    frame = multiclass_index([1000, 600, 400])
    result = split(frame)
    drawn = subsamples(frame, result)
    for fraction in FRACTIONS:
        held = of_fraction(drawn, frame, seed=0, fraction=fraction)["labels"].list.first()
        counts = np.bincount(held, minlength=3)
        np.testing.assert_allclose(counts, fraction * np.array([700, 420, 280]), atol=1)


def test_a_subsample_holds_every_class_of_the_train_side():
    frame = multiclass_index([400, 4, 4])
    result = split(frame)
    for seed in (0, 1):
        held = of_fraction(subsamples(frame, result), frame, seed=seed, fraction=0.01)
        assert set(held["labels"].list.first()) == {0, 1, 2}


def test_when_a_fraction_is_too_small_for_the_classes_they_alone_are_its_subsample():
    frame = multiclass_index([40, 20, 10])
    drawn = subsamples(frame, split(frame))
    sizes = drawn.filter(seed=0)["label_fraction"].value_counts().sort("label_fraction")
    # 49 training samples: 1 % and 5 % round to 0 and 2, both raised to the 3 classes.
    assert sizes.rows() == [(0.01, 3), (0.10, 2), (0.25, 7), (1.0, 37)]


def test_halves_are_rounded_up():
    frame = multiclass_index([50, 50])
    drawn = subsamples(frame, split(frame), classes=["a", "b"], label_fractions=[0.05, 0.15, 1.0])
    # 70 training samples: 3.5 and 10.5.
    sizes = drawn.filter(seed=0)["label_fraction"].value_counts().sort("label_fraction")["count"]
    assert sizes.cum_sum().to_list() == [4, 11, 70]


def test_subsamples_differ_between_seeds_and_follow_from_them():
    frame = multiclass_index([400, 200, 100])
    result = split(frame)
    both = subsamples(frame, result)
    alone = subsamples(frame, result, seeds=[1])
    assert both.filter(seed=1).equals(alone)
    first, second = (set(both.filter(seed=s, label_fraction=0.05)["sample"]) for s in (0, 1))
    assert len(first & second) < len(first) / 2


def test_the_order_of_rows_does_not_change_subsamples():
    frame = multilabel_index(300)
    result = split_findings(frame)
    shuffled = frame.sample(fraction=1, shuffle=True, seed=1)
    choices = {"task": "multilabel", "classes": FINDINGS}
    first = subsamples(frame, result, **choices)
    assert first.equals(subsamples(shuffled, result, **choices))


@pytest.mark.parametrize("uncertain", ["mask", "zeros", "ones", "mixed"])
def test_a_subsample_holds_a_positive_and_a_negative_of_every_label_that_has_both(uncertain):
    frame = multilabel_index(300)
    result = split_findings(frame)
    choices = {"task": "multilabel", "classes": FINDINGS, "uncertain": uncertain}
    drawn = subsamples(frame, result, **choices)
    for seed in (0, 1):
        held = of_fraction(drawn, frame, seed=seed, fraction=0.01)
        truth = truth_matrix(held["labels"], **choices)
        assert (truth == 1).any(axis=0).all()
        assert (truth == 0).any(axis=0).all()
        assert 2 <= held.height <= 8


def test_a_label_with_a_single_value_asks_for_nothing():
    frame = index([f"g{i}" for i in range(100)], [[i % 2, 0] for i in range(100)])
    result = split(frame, task="multilabel", classes=["Edema", "Fracture"])
    drawn = subsamples(frame, result, task="multilabel", classes=["Edema", "Fracture"])
    assert drawn.filter(seed=0, label_fraction=0.01).height == 2


def test_findings_keep_their_prevalence_in_subsamples():
    frame = multilabel_index(3000)
    result = split_findings(frame)
    drawn = subsamples(frame, result, task="multilabel", classes=FINDINGS)
    train = frame.join(result.split.filter(side="train"), on="sample", how="semi")
    of_train = (np.array(train["labels"].to_list()) == 1).mean(axis=0)
    for fraction in (0.05, 0.25):
        held = of_fraction(drawn, frame, seed=0, fraction=fraction)
        prevalence = (np.array(held["labels"].to_list()) == 1).mean(axis=0)
        np.testing.assert_allclose(prevalence, of_train, atol=1.5 / held.height)


# --- Targets --------------------------------------------------------------------------------------

NAN = np.nan


@pytest.mark.parametrize(
    ("uncertain", "expected"),
    [
        ("mask", [[NAN, NAN, NAN, 1], [0, 1, 0, NAN]]),
        ("zeros", [[0, 0, 0, 1], [0, 1, 0, 0]]),
        ("ones", [[1, 1, 1, 1], [0, 1, 0, 1]]),
        ("mixed", [[1, 0, 1, 1], [0, 1, 0, 0]]),
    ],
)
def test_uncertain_labels_follow_the_policy(uncertain, expected):
    labels = pl.Series([[-1, -1, -1, 1], [0, 1, 0, -1]], dtype=pl.List(pl.Int8))
    found = truth_matrix(labels, task="multilabel", classes=FINDINGS, uncertain=uncertain)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, expected)


def test_the_mixed_policy_goes_by_name_not_by_position():
    labels = pl.Series([[-1, -1, -1, -1]], dtype=pl.List(pl.Int8))
    reversed_ = truth_matrix(labels, task="multilabel", classes=FINDINGS[::-1], uncertain="mixed")
    np.testing.assert_array_equal(reversed_, [[0, 1, 0, 1]])


@pytest.mark.parametrize("task", ["multiclass", "ordinal"])
def test_classes_become_indicators(task):
    labels = pl.Series([[2], [0]], dtype=pl.List(pl.Int8))
    found = truth_matrix(labels, task=task, classes=["a", "b", "c"], uncertain="mask")
    np.testing.assert_array_equal(found, [[0, 0, 1], [1, 0, 0]])


def test_dropped_classes_are_named_with_the_reason():
    train = np.array([[1, 0, 0, 1, NAN], [0, 1, 0, 1, 1], [0, 0, 0, 1, 0]])
    test = np.array([[1, 0, 1, 0, NAN], [0, 0, 0, 1, 1]])
    assert dropped_classes(train, test, classes=["a", "b", "c", "d", "e"]) == {
        "b": "no positive in test",
        "c": "no positive in train",
        "d": "no negative in train",
        "e": "no negative in test",
    }
