"""Sides and shift targets: nothing torn apart, classes by name, uncertain labels alike."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from crsbench.errors import DataError
from crsbench.evaluation import Scorer, Scoring
from crsbench.files import write_parquet
from crsbench.probes.base import Fit, Subset
from crsbench.probes.logistic import fit_logistic
from crsbench.sides import Labels, Side, read_evaluated, read_sides, read_targets
from crsbench.splits import class_notes, label_subsamples, split_index

NAN = np.nan
FINDINGS = ["Edema", "Fracture", "Atelectasis"]
UNCERTAIN = {
    "mask": [NAN, NAN, NAN],
    "zeros": [0, 0, 0],
    "ones": [1, 1, 1],
    "mixed": [1, 0, 1],
}


def write_index(
    path: Path,
    labels: Sequence[Sequence[int]],
    *,
    classes: Sequence[str] = FINDINGS,
    task: str = "multilabel",
    groups: Sequence[str] | None = None,
    clusters: Sequence[str | None] | None = None,
) -> Path:
    samples = [f"s{row:03d}" for row in range(len(labels))]
    frame = pl.DataFrame(
        {
            "sample": samples,
            "group": samples if groups is None else groups,
            "labels": pl.Series(labels, dtype=pl.List(pl.Int8)),
            "duplicate_cluster": pl.Series(clusters or [None] * len(labels), dtype=pl.String),
        }
    )
    write_parquet(frame, path, metadata={"task": task, "classes": json.dumps(classes)})
    return path


def write_split(path: Path, sides: Sequence[str]) -> Path:
    samples = [f"s{row:03d}" for row in range(len(sides))]
    write_parquet(pl.DataFrame({"sample": samples, "side": sides}), path)
    return path


# --- No side without a check ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": ["p", "q", "p"]}, r"1 of group on two sides, such as 'p'"),
        ({"clusters": ["s000", None, "s000"]}, r"1 of duplicate_cluster on two sides, .*'s000'"),
    ],
)
def test_sides_that_tear_a_group_or_a_cluster_apart_are_never_read(tmp_path, changes, message):
    index = write_index(tmp_path / "index.parquet", [[1, 0, 0]] * 3, **changes)
    split = write_split(tmp_path / "split.parquet", ["train", "calibration", "test"])
    with pytest.raises(DataError, match=message):
        read_sides(index, split, labels=Labels.read(index, uncertain="mask"))


def test_an_index_and_a_split_of_other_samples_are_an_error(tmp_path):
    index = write_index(tmp_path / "index.parquet", [[1, 0, 0]] * 3)
    split = write_split(tmp_path / "split.parquet", ["train", "test"])
    with pytest.raises(DataError, match="split and index have different samples"):
        read_sides(index, split, labels=Labels.read(index, uncertain="mask"))


# --- Uncertain labels, on both sides of a shift ---------------------------------------------------

#: Of 90 images every third is uncertain in all labels, the others are positive or negative.
CYCLE = [[1, 1, 0], [-1, -1, -1], [0, 0, 1]]


@pytest.fixture
def files(tmp_path) -> tuple[Path, Path, Path]:
    """Index and split of a source, and the index of its target, with the same labels."""
    source = write_index(tmp_path / "source.parquet", CYCLE * 30)
    target = write_index(tmp_path / "target.parquet", CYCLE * 30)
    split = write_split(tmp_path / "split.parquet", ["train"] * 60 + ["calibration", "test"] * 15)
    return source, split, target


@pytest.mark.parametrize("uncertain", UNCERTAIN)
def test_an_uncertain_label_means_the_same_in_fit_evaluation_and_target(files, uncertain):
    source, split, target = files
    labels = Labels.read(source, uncertain=uncertain)
    sides = read_sides(source, split, labels=labels)
    evaluated = read_evaluated("here", sides["test"], shift={"there": target}, labels=labels)
    expected = np.array([[1, 1, 0], UNCERTAIN[uncertain], [0, 0, 1]], dtype=float)
    np.testing.assert_array_equal(sides["train"].labels[:3], expected)
    for side in evaluated.values():
        rows = [int(sample[1:]) % 3 for sample in side.samples]
        np.testing.assert_array_equal(side.truth, expected[rows])
        np.testing.assert_array_equal(side.labels, expected[rows])


@pytest.mark.parametrize("uncertain", UNCERTAIN)
def test_the_same_rows_are_scored_alike_as_test_side_and_as_shift_target(files, uncertain):
    source, split, target = files
    labels = Labels.read(source, uncertain=uncertain)
    sides = read_sides(source, split, labels=labels)
    evaluated = read_evaluated("here", sides["train"], shift={"there": target}, labels=labels)
    metrics = {"n_bins": 15, "specificity": 0.9, "binary_confidence": "positive"}
    scoring = Scoring(labels.task, labels.classes, [], **metrics)
    logits = np.random.default_rng(0).normal(size=(60, 3))
    own = Scorer(evaluated["here"], scoring)
    there = evaluated["there"]
    other = Scorer(Side(there.samples[:60], there.labels[:60], there.truth[:60]), scoring)
    assert own.score(logits).values == other.score(logits).values
    known = 40 if uncertain == "mask" else 60
    assert own.n_positive.tolist() == other.n_positive.tolist()
    assert (own.n_positive + own.n_negative).tolist() == [known] * 3


def fitted(features: np.ndarray, labels: np.ndarray) -> Fit:
    (fit,) = fit_logistic(
        features,
        labels,
        [Subset(1.0, 0, np.arange(len(labels)))],
        task="multilabel",
        n_classes=labels.shape[1],
        tolerance=1e-8,
        max_iterations=1000,
        threads=1,
    )
    return fit


@pytest.mark.parametrize("uncertain", UNCERTAIN)
def test_a_probe_is_fitted_on_the_labels_that_the_policy_makes(files, uncertain):
    source, split, _ = files
    sides = read_sides(source, split, labels=Labels.read(source, uncertain=uncertain))
    features = np.random.default_rng(0).normal(size=(60, 2))
    fit = fitted(features, sides["train"].labels)
    by_hand = np.array([[1, 1, 0], UNCERTAIN[uncertain], [0, 0, 1]] * 20, dtype=float)
    for label in range(3):
        rows = ~np.isnan(by_hand[:, label])
        alone = fitted(features[rows], by_hand[rows, label : label + 1])
        np.testing.assert_allclose(
            fit.logits(features)[:, label], alone.logits(features)[:, 0], atol=1e-6
        )


def test_the_split_does_not_depend_on_the_policy_and_subsamples_cover_what_it_makes():
    values = np.where(np.random.default_rng(0).random((400, 3)) < 0.3, -1, 0)
    values[:4, 0] = 1  # the only Edema that is certain
    index = pl.DataFrame(
        {
            "sample": [f"s{row:03d}" for row in range(400)],
            "group": [f"s{row:03d}" for row in range(400)],
            "labels": pl.Series(values.tolist(), dtype=pl.List(pl.Int8)),
            "duplicate_cluster": pl.Series([None] * 400, dtype=pl.String),
        }
    )
    about = {"task": "multilabel", "classes": FINDINGS}
    shares = {"train": 0.7, "calibration": 0.1, "test": 0.2}
    split = split_index(index, dataset="d", shares=shares, seed=0, **about).split
    for uncertain, expected in UNCERTAIN.items():
        drawn = label_subsamples(
            index,
            split,
            dataset="d",
            label_fractions=[0.01, 1.0],
            seeds=[0],
            uncertain=uncertain,
            **about,
        )
        smallest = drawn.filter(pl.col("label_fraction") == 0.01)
        rows = [int(sample[1:]) for sample in smallest["sample"]]
        truth = np.where(values[rows] == -1, expected, values[rows])
        assert set(np.unique(truth[:, 0][~np.isnan(truth[:, 0])])) == {0, 1}
        notes = class_notes(index, split, uncertain=uncertain, **about)
        dropped = [note.split(":")[0] for note in notes if "dropped" in note]
        certain = {"mask": ["Fracture", "Atelectasis"], "zeros": ["Fracture", "Atelectasis"],
                   "ones": [], "mixed": ["Fracture"]}  # fmt: skip
        assert dropped == certain[uncertain]


# --- Targets with classes of their own ------------------------------------------------------------


def target(tmp_path: Path, source: Labels, *args, **changes) -> Side:
    path = write_index(tmp_path / "target.parquet", *args, **changes)
    return read_targets({"there": path}, labels=source)["there"]


@pytest.mark.parametrize("uncertain", UNCERTAIN)
def test_classes_of_a_target_are_matched_by_name(tmp_path, uncertain):
    source = Labels("multilabel", FINDINGS, uncertain)
    permuted = target(
        tmp_path, source, [[1, 0, -1], [0, -1, 1]], classes=["Fracture", "Atelectasis", "Edema"]
    )
    edema, _, atelectasis = UNCERTAIN[uncertain]
    np.testing.assert_array_equal(permuted.truth, [[edema, 1, 0], [1, 0, atelectasis]])


def test_a_label_that_a_target_lacks_is_masked(tmp_path):
    source = Labels("multilabel", FINDINGS, "zeros")
    side = target(tmp_path, source, [[1], [-1]], classes=["Atelectasis"])
    np.testing.assert_array_equal(side.truth, [[NAN, NAN, 1], [NAN, NAN, 0]])
    metrics = {"n_bins": 15, "specificity": 0.9, "binary_confidence": "positive"}
    scorer = Scorer(side, Scoring("multilabel", FINDINGS, [], **metrics))
    assert scorer.kept_names == ["Atelectasis"]
    scores = scorer.score(np.array([[0.0, 0.0, 2.0], [0.0, 0.0, 1.0]]))
    assert scores.values["macro_auroc"] == 1
    assert scores.undefined == []


@pytest.mark.parametrize("task", ["multiclass", "ordinal"])
def test_a_class_that_a_target_lacks_has_no_positive_there(tmp_path, task):
    source = Labels(task, ["mild", "moderate", "severe"], "mask")
    side = target(tmp_path, source, [[1], [0]], classes=["mild", "severe"], task=task)
    np.testing.assert_array_equal(side.truth, [[0, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(side.labels, [2, 0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ["Edema", "Fracture", "Nodule"]}, r"there is multilabel with Nodule, its sou"),
        ({"task": "multiclass"}, r"there is multiclass with the same classes, its source multilab"),
    ],
)
def test_a_target_of_another_task_or_class_is_an_error(tmp_path, changes, message):
    source = Labels("multilabel", FINDINGS, "mask")
    with pytest.raises(DataError, match=message):
        target(tmp_path, source, [[1, 0, 0]], **changes)
