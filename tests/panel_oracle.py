"""Plain-loop oracles of the score and its bootstrap, and small synthetic run records.

Nothing here is vectorised or shares code with the library, but for the names of columns.
"""

import numpy as np
import polars as pl

from crsbench.crs import Weights
from crsbench.records import RUN_RECORD

#: The weights of the paper.
WEIGHTS = Weights((0.60, 0.25, 0.15), (0.25, 0.25, 0.25, 0.25))

FRACTIONS = (0.01, 0.1, 1.0)
PERTURBED = (("blur", 1), ("blur", 2), ("jpeg", 1))
SEEDS = (0, 1, 2, 3, 4)
ENCODERS = ("oak", "elm", "ash", "fir", "yew")
DATASETS = ("skin", "chest")
MISSING = ("yew", "skin")


def slow_crs(axes, components=WEIGHTS.components, weights=WEIGHTS.axes, limits=None):
    """CRS of each of a list of four-axis rows, by the formulas of the paper."""
    limits = limits or [(min(column), max(column)) for column in zip(*axes, strict=True)]
    return [
        slow_score(row, axes[:own] + axes[own + 1 :], limits, components, weights)
        for own, row in enumerate(axes)
    ]


def slow_score(candidate, others, limits, components=WEIGHTS.components, weights=WEIGHTS.axes):
    """CRS of one four-axis row against the others of a panel, on given anchors."""

    def scaled(row):
        return [
            min(1.0, max(0.0, (value - low) / (high - low)))
            for value, (low, high) in zip(row, limits, strict=True)
        ]

    mine, beaten, ideal = scaled(candidate), 0, 1.0
    for other in map(scaled, others):
        pairs = list(zip(mine, other, strict=True))
        if all(a >= b for a, b in pairs) and any(a > b for a, b in pairs):
            beaten += 1
    for weight, value in zip(weights, mine, strict=True):
        ideal -= weight * (1 - value) ** 2
    parts = (beaten / len(others), ideal, min(mine))
    return sum(w * part for w, part in zip(components, parts, strict=True))


def run_records(seed=0):
    """Run records of 5 encoders on 2 datasets less one cell; the chest has a shift target."""
    random = np.random.default_rng(seed)
    rows = []
    for encoder in ENCODERS:
        for dataset in DATASETS:
            if (encoder, dataset) != MISSING:
                rows += _cell_records(encoder, dataset, random)
    return pl.DataFrame(rows, schema=RUN_RECORD)


def _cell_records(encoder, dataset, random):
    conditions = [(dataset, f, "clean", 0) for f in FRACTIONS]
    conditions += [(dataset, f, *condition) for f in FRACTIONS for condition in PERTURBED]
    if dataset == "chest":
        conditions += [("clinic", f, "clean", 0) for f in FRACTIONS]
    rows = []
    for target, fraction, perturbation, severity in conditions:
        for seed in SEEDS:
            classes = random.uniform(0.6, 0.95, 3).tolist()
            if target == "clinic":
                classes[2] = None
            rows.append(
                {
                    "probe": "logistic",
                    "encoder": encoder,
                    "dataset": dataset,
                    "target": target,
                    "label_fraction": fraction,
                    "perturbation": perturbation,
                    "severity": severity,
                    "seed": seed,
                    "macro_auroc": sum(classes[:2]) / 2,
                    "class_auroc": classes,
                    "ece": random.uniform(0.01, 0.2),
                    "adaptive_ece": random.uniform(0.01, 0.2),
                    "brier": random.uniform(0.05, 0.2),
                    "qwk": random.uniform(0.5, 0.9) if dataset == "skin" else None,
                    "ordinal_mae": random.uniform(0.2, 0.6) if dataset == "skin" else None,
                    "undefined": [],
                }
            )
    return rows


def slow_cell_axes(records, encoder, dataset, drawn):
    """The four axes of one cell from the records of the drawn seeds, repeats and all."""
    table = {}
    for row in records.iter_rows(named=True):
        if (row["encoder"], row["dataset"]) == (encoder, dataset):
            key = (row["target"], row["label_fraction"], row["perturbation"], row["severity"])
            table[(*key, row["seed"])] = row

    def mean(target, fraction, value, perturbation="clean", severity=0):
        values = [value(table[target, fraction, perturbation, severity, seed]) for seed in drawn]
        return sum(values) / len(values)

    def macro(row):
        return row["macro_auroc"]

    full = mean(dataset, 1.0, macro)
    low = [mean(dataset, fraction, macro) for fraction in FRACTIONS[:-1]]
    drops = [
        max(0.0, (full - mean(dataset, 1.0, macro, *condition)) / full) for condition in PERTURBED
    ]
    terms = [sum(drops) / len(drops), max(drops)]
    if dataset == "chest":
        common = [0, 1]
        means = []
        for target in (dataset, "clinic"):
            aurocs = [
                mean(target, 1.0, lambda row, c=column: row["class_auroc"][c]) for column in common
            ]
            means.append(sum(aurocs) / len(aurocs))
        terms.append(max(0.0, (means[0] - means[1]) / means[0]))
    return [
        full,
        1 - mean(dataset, 1.0, lambda row: row["ece"]),
        sum(value / full for value in low) / len(low),
        max(0.0, 1 - sum(terms) / len(terms)),
    ]


def slow_aggregate(records, drawn):
    """Aggregate axes of every encoder: the mean over its datasets; `drawn` seeds by dataset."""
    rows = []
    for encoder in ENCODERS:
        cells = [
            slow_cell_axes(records, encoder, dataset, drawn[dataset])
            for dataset in DATASETS
            if (encoder, dataset) != MISSING
        ]
        rows.append([sum(column) / len(cells) for column in zip(*cells, strict=True)])
    return rows
