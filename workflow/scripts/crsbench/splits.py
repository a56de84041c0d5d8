"""Who is trained, calibrated and tested on: the split, the label subsamples, the truth.

- One fixed split a dataset into train, calibration and test. A group (lesion, patient, set of
  duplicates) is never on two sides. It depends on the index, the shares and the seed alone: not on
  the order of rows, nor on what is done with uncertain labels.
- Label subsamples of the train side are nested for each seed and stratified.
- Truth is made from labels in one place, for a source and a shift target alike.

Both splitting and subsampling are stratified in the same way (`crsbench.stratification`): sides get
whole groups, and the shells between two label fractions get images. Ahead of that, what each bin
must have at least one of is placed, the rarest first.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from crsbench.digests import frame_digest, generator
from crsbench.errors import DataError
from crsbench.stratification import UNPLACED, Units, fill, represent

#: Sides of the split, in the order in which they get an example of a rare class.
SIDES = ("train", "test", "calibration")
Task = Literal["multiclass", "ordinal", "multilabel"]
Uncertain = Literal["mask", "zeros", "ones", "mixed"]

_POSITIVE_IF_UNCERTAIN = frozenset({"Atelectasis", "Edema"})


@dataclass(frozen=True)
class SplitResult:
    """The sides of all samples, and what a reader must know about them.

    Parameters
    ----------
    split
        ``sample`` and ``side``, sorted by sample.
    notes
        Shares that the groups did not permit.
    """

    split: pl.DataFrame
    notes: Sequence[str]

    def metadata(self, *, index_digest: str) -> dict[str, str]:
        """Return the metadata of the split's file."""
        return {
            "index_digest": index_digest,
            "split_digest": frame_digest(self.split),
            "notes": json.dumps(self.notes),
        }


def truth_matrix(
    labels: pl.Series, *, task: Task, classes: Sequence[str], uncertain: Uncertain
) -> np.ndarray:
    """Return the truth of all classes, the same way for a source and its shift target.

    Parameters
    ----------
    labels
        Column ``labels`` of an index, N rows.
    task, classes
        Of the dataset; C classes.
    uncertain
        What a label of -1 becomes: ``mask`` NaN, ``zeros`` 0, ``ones`` 1, ``mixed`` 1 for
        Atelectasis and Edema and 0 for the rest.

    Returns
    -------
    ndarray of float64, (N, C)
        1 where a sample has class c, 0 where not, NaN where that is masked. For multiclass and
        ordinal tasks each row has a single 1.
    """
    if task != "multilabel":
        return np.eye(len(classes))[labels.list.first().to_numpy()]
    values = _label_matrix(labels, task=task, classes=classes).astype(np.float64)
    positive = [uncertain == "mixed" and name in _POSITIVE_IF_UNCERTAIN for name in classes]
    replacement = {
        "mask": np.full(len(classes), np.nan),
        "zeros": np.zeros(len(classes)),
        "ones": np.ones(len(classes)),
        "mixed": np.array(positive, dtype=np.float64),
    }[uncertain]
    return np.where(values == -1, replacement, values)


def dropped_classes(
    train: np.ndarray, test: np.ndarray, *, classes: Sequence[str]
) -> dict[str, str]:
    """Return the classes that leave every macro average, each with the reason.

    Parameters
    ----------
    train, test : ndarray of float64, (N, C)
        Truth of the two sides, as `truth_matrix` returns it.

    Returns
    -------
    dict
        Class name to reason, in the order of `classes`: the class has no positive (or, a label,
        no negative) in train, or has a single value in test.
    """
    reasons: dict[str, str] = {}
    for side, of_side in (("train", train), ("test", test)):
        for name, column in zip(classes, of_side.T, strict=True):
            values = {"positive": 1, "negative": 0}
            lacking = [f"no {word}" for word, value in values.items() if value not in column]
            if lacking:
                reasons.setdefault(name, f"{' and '.join(lacking)} in {side}")
    return {name: reasons[name] for name in classes if name in reasons}


def split_index(
    index: pl.DataFrame,
    *,
    dataset: str,
    task: Task,
    classes: Sequence[str],
    shares: Mapping[str, float],
    seed: int,
) -> SplitResult:
    """Split an index by groups, stratified by labels (protocol, section 2).

    Parameters
    ----------
    index
        `crsbench.datasets.indexing.INDEX_SCHEMA`; rows in any order.
    dataset, seed
        What the random order of equal groups depends on.
    task, classes
        Of the dataset.
    shares
        Share of each of ``train``, ``calibration`` and ``test``; their sum is 1.

    Returns
    -------
    SplitResult
        A class with three groups or more is on all sides, one with two on train and test, one
        with a single group on train, as far as rarer classes have left it groups. A label of a
        multilabel task counts as two classes, positive and negative.

    Raises
    ------
    DataError
        There are fewer groups than sides, or so few that a side gets none.
    """
    index = index.sort("sample")
    names, group = np.unique(index["group"].to_numpy(), return_inverse=True)
    where = f"{dataset}: {index.height} images in {len(names)} groups"
    if len(names) < len(SIDES):
        raise DataError(f"{where} cannot be split into {', '.join(SIDES)}; get more data")
    values = _label_matrix(index["labels"], task=task, classes=classes)
    counts = _sums_by_group(_strata(values), group, len(names))
    shuffled = generator("split", dataset, seed).permutation(len(names))
    weight = np.array([math.fsum(row) for row in counts / counts.sum(axis=0)])
    order = shuffled[np.argsort(-weight[shuffled], kind="stable")]
    side = np.full(len(names), UNPLACED)
    to_cover = _sums_by_group(_values_to_cover(values), group, len(names)) > 0
    represent(to_cover, order, side, n_bins=len(SIDES))
    by_side = np.array([shares[name] for name in SIDES])
    fill(Units.of(counts), order, side, shares=by_side, capacity=np.full(len(SIDES), np.inf))
    empty = set(range(len(SIDES))) - set(side)
    if empty:
        raise DataError(f"{where} leave none for {SIDES[min(empty)]}; get more data")
    split = pl.DataFrame({"sample": index["sample"], "side": np.array(SIDES)[side[group]]})
    check_no_leak(index, split)
    n_wanted = {name: shares[name] * index.height for name in SIDES}
    return SplitResult(
        split=split,
        notes=_notes_on_sizes(split, n_wanted, largest_group=int(np.bincount(group).max())),
    )


def check_no_leak(index: pl.DataFrame, split: pl.DataFrame) -> None:
    """Raise unless the split has the index's samples, and no group or duplicate on two sides."""
    if sorted(index["sample"]) != sorted(split["sample"]):
        raise DataError("split and index have different samples; make the split again")
    joined = index.select("sample", "group", "duplicate_cluster").join(split, on="sample")
    for unit in ("group", "duplicate_cluster"):
        sides = joined.filter(pl.col(unit).is_not_null()).group_by(unit)
        torn = sides.agg(pl.col("side").n_unique()).filter(pl.col("side") > 1).sort(unit)
        if not torn.is_empty():
            raise DataError(
                f"split: {torn.height} of {unit} on two sides, such as {torn[unit][0]!r}; "
                "make index and split again"
            )


def label_subsamples(
    index: pl.DataFrame,
    split: pl.DataFrame,
    *,
    dataset: str,
    task: Task,
    classes: Sequence[str],
    label_fractions: Sequence[float],
    seeds: Sequence[int],
    uncertain: Uncertain,
) -> pl.DataFrame:
    """Draw nested, stratified subsamples of the train side for each seed (protocol, section 2).

    The subsample of fraction f has n(f) = max(round(f N), n_0) of the N train samples, halves
    rounded up. n_0 is the size of a set, drawn at random for the seed, that holds one example of
    every class of the train side; for a multilabel task one positive and one negative of every
    label that has both.

    Returns
    -------
    DataFrame
        ``seed``, ``sample``, and ``label_fraction``, the smallest fraction whose subsample holds
        the sample; sorted by seed and sample. The subsample of fraction f is the rows with
        ``label_fraction <= f``. Samples in none of them are left out.
    """
    train = index.join(split.filter(side="train"), on="sample", how="semi").sort("sample")
    values = _label_matrix(train["labels"], task=task, classes=classes)
    truth = truth_matrix(train["labels"], task=task, classes=classes, uncertain=uncertain)
    to_cover = _values_to_cover(truth)
    if task == "multilabel":
        both = to_cover.any(axis=0).reshape(2, -1).all(axis=0)
        to_cover = to_cover[:, np.tile(both, 2)]
    fractions = sorted(label_fractions)
    units = Units.of(_strata(values))
    draws = [
        _shells(
            units,
            to_cover,
            fractions=fractions,
            order=generator("label subsample", dataset, seed).permutation(train.height),
        )
        for seed in seeds
    ]
    smallest = np.append(fractions, np.nan)
    frames = [
        pl.DataFrame({"sample": train["sample"], "label_fraction": smallest[shell]}).select(
            pl.lit(seed, pl.Int64).alias("seed"), "sample", "label_fraction"
        )
        for seed, shell in zip(seeds, draws, strict=True)
    ]
    return pl.concat(frames).filter(pl.col("label_fraction").is_not_nan()).sort("seed", "sample")


def _shells(
    units: Units, to_cover: np.ndarray, *, fractions: Sequence[float], order: np.ndarray
) -> np.ndarray:
    """Return for each sample the first fraction that holds it, as a position; (N,).

    The last position, one past the fractions, is that of samples in no subsample.
    """
    n_samples = len(order)
    placed = np.full(n_samples, UNPLACED)
    represent(to_cover, order, placed, n_bins=1)
    smallest = int((placed == 0).sum())
    ends = [max(_half_up(f * n_samples), smallest) for f in fractions]
    sizes = np.diff([0, *ends, n_samples])
    fill(units, order, placed, shares=sizes / n_samples, capacity=sizes)
    return placed


def _half_up(number: float) -> int:
    """Round to whole numbers, halves up; 14.4999999999 (0.29 * 50) is a half."""
    return math.floor(round(number, 9) + 0.5)


def _label_matrix(labels: pl.Series, *, task: Task, classes: Sequence[str]) -> np.ndarray:
    """Return labels as integers: (N, L) of {1, 0, -1}, or (N, C) one-hot."""
    if task != "multilabel":
        return np.eye(len(classes), dtype=np.int8)[labels.list.first().to_numpy()]
    return labels.list.to_array(len(classes)).to_numpy()


def _strata(values: np.ndarray) -> np.ndarray:
    """Return what shall be spread evenly: positives, uncertain ones, images; (N, K)."""
    columns = np.hstack([values == 1, values == -1, np.ones((len(values), 1))])
    return columns[:, columns.any(axis=0)].astype(np.float64)


def _values_to_cover(values: np.ndarray) -> np.ndarray:
    """Return which samples are positive and which negative for each label; bool (N, 2 C)."""
    return np.hstack([values == 1, values == 0])


def _sums_by_group(columns: np.ndarray, group: np.ndarray, n_groups: int) -> np.ndarray:
    """Sum the columns (N, K) over the rows of each group; (G, K)."""
    sums = [np.bincount(group, weights=column, minlength=n_groups) for column in columns.T]
    return np.column_stack(sums)


def _notes_on_sizes(
    split: pl.DataFrame, n_wanted: Mapping[str, float], *, largest_group: int
) -> list[str]:
    """Name the sides whose size is off by more than a percent of all and the largest group."""
    tolerance = max(0.01 * split.height, largest_group)
    notes = []
    for side, wanted in n_wanted.items():
        found = split.filter(side=side).height
        if abs(found - wanted) > tolerance:
            notes.append(f"{side}: {found} images where {wanted:.0f} were wanted; groups are large")
    return notes


def class_notes(
    index: pl.DataFrame,
    split: pl.DataFrame,
    *,
    task: Task,
    classes: Sequence[str],
    uncertain: Uncertain,
) -> list[str]:
    """Name the classes that are dropped, with the reason, and those missing in calibration."""
    joined = index.join(split, on="sample")
    by_side = {
        side: truth_matrix(
            joined.filter(side=side)["labels"], task=task, classes=classes, uncertain=uncertain
        )
        for side in SIDES
    }
    dropped = dropped_classes(by_side["train"], by_side["test"], classes=classes)
    notes = [f"{name}: dropped from the averages, {why}" for name, why in dropped.items()]
    positives = (by_side["calibration"] == 1).any(axis=0)
    for name, found in zip(classes, positives, strict=True):
        if not found and name not in dropped:
            notes.append(f"{name}: no positive in calibration")
    return notes
