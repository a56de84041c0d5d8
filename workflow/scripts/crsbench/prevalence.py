"""Prevalence: how often each class occurs on each side of a dataset and in its shift targets.

Probes learn on the train side and are judged elsewhere. Where a class is far more or far less
frequent there, calibration and precision change for that reason alone, so it is said.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from crsbench.sides import Side

#: Prevalences that differ by more than this factor are pointed out.
LARGEST_RATIO = 5.0

#: `note` says how the prevalence differs from the train side's, and is empty where it does not.
PREVALENCE = pl.Schema(
    {
        "set": pl.String(),
        "class": pl.String(),
        "n_images": pl.Int64(),
        "n_positive": pl.Int64(),
        "n_negative": pl.Int64(),
        "n_masked": pl.Int64(),
        "prevalence": pl.Float64(),
        "note": pl.String(),
    }
)


def prevalence_table(sets: Mapping[str, Side], *, classes: Sequence[str]) -> pl.DataFrame:
    """Count each class in each set.

    Parameters
    ----------
    sets
        The sides of a dataset, ``train`` among them, and its shift targets by name.
    classes
        Of the dataset.

    Returns
    -------
    DataFrame
        `PREVALENCE`, one row per set and class. ``prevalence`` is the share of positives among
        the labels that are not masked; null where all are.
    """
    of_train = _prevalence(sets["train"].truth)
    rows = []
    for name, side in sets.items():
        positive, negative = ((side.truth == value).sum(axis=0) for value in (1, 0))
        counts = zip(classes, positive, negative, _prevalence(side.truth), of_train, strict=True)
        for label, n_positive, n_negative, share, reference in counts:
            n_images = len(side.samples)
            note = _note(share, reference)
            rows.append(
                {
                    "set": name,
                    "class": label,
                    "n_images": n_images,
                    "n_positive": n_positive,
                    "n_negative": n_negative,
                    "n_masked": n_images - n_positive - n_negative,
                    "prevalence": None if np.isnan(share) else share,
                    "note": f"{label} in {name}: {note}" if note else "",
                }
            )
    return pl.DataFrame(rows, schema=PREVALENCE)


def _prevalence(truth: np.ndarray) -> np.ndarray:
    """Return the share of positives of each class, (C,); NaN where all are masked."""
    positive, negative = ((truth == value).sum(axis=0) for value in (1, 0))
    known = positive + negative
    return np.divide(positive, known, out=np.full(len(known), np.nan), where=known > 0)


def _note(share: float, of_train: float) -> str:
    """Say how a prevalence differs from the train side's; nothing where it is alike or unknown."""
    smaller, larger = min(share, of_train), max(share, of_train)
    if np.isnan(share + of_train) or larger <= LARGEST_RATIO * smaller:
        return ""
    factor = f"a factor of {larger / smaller:.1f}" if smaller else "none in one of them"
    return f"prevalence {share:.3g}, in train {of_train:.3g}: {factor}"


def prevalence_lines(table: pl.DataFrame) -> list[str]:
    """Return one line per class with its prevalence in each set, for a log."""
    lines = []
    for (label,), rows in table.group_by("class", maintain_order=True):
        shares = rows.select("set", pl.col("prevalence").round_sig_figs(3)).iter_rows()
        lines.append(f"{label}: " + ", ".join(f"{name} {share}" for name, share in shares))
    return lines
