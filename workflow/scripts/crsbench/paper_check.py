"""The paper's own numbers, recomputed from what it publishes.

Law: nothing but the CSV files of ``resources/paper`` (arXiv:2608.22059) enters. Every statement
is judged by its printed value, what this library computes, and a tolerance that is fixed here:
the rounding of the published digits, or, where the paper drew at random, four standard errors of
its number of draws. A statement that needs run records is listed, and not judged.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from crsbench.crs import AXES, Anchors, Floats, Weights, score_cohort
from crsbench.decisions import decisions, rank_moves
from crsbench.digests import generator
from crsbench.errors import CrsBenchError
from crsbench.rankings import mid_ranks, spearman
from crsbench.reference import AGGREGATE, NORMALISED, Member, Reference, tabulate_cells
from crsbench.validity import insertions, panels, summarise_agreement, weight_draws

SOURCE = "arXiv:2608.22059"
PAPER_WEIGHTS = Weights((0.60, 0.25, 0.15), (0.25, 0.25, 0.25, 0.25))
DATASETS = ("isic", "aptos", "chexpert")
#: Both label efficiencies are printed as 0.49; the published scores need the first to be higher.
TIE_ABOVE, TIE_BELOW, TIE_AXIS = "SigLIP", "BiomedCLIP", "label_efficiency"
TIE_GAP = 1e-6
#: Matched dataset of each specialist (Table 1).
MATCHED = {
    "PanDerm": "isic",
    "RETFound": "aptos",
    "RAD-DINO": "chexpert",
    "BioViL": "chexpert",
    "CheXzero": "chexpert",
}
#: Experiments of 30 insertion trials that give the distribution of the paper's one.
N_INSERTION_EXPERIMENTS = 100
N_TRIALS = 30
N_DRAWS = 200
N_WEIGHT_DRAWS = 500
PANEL_SIZES = (12, 10)
#: A difference of printed decimals that equals its tolerance is not to fail by the last bit.
ROUNDING = 1e-12

PAPER_CHECK = pl.Schema(
    {"statement": pl.String()}
    | dict.fromkeys(("published", "recomputed", "difference", "tolerance"), pl.Float64())
    | {"verdict": pl.String()}
)

NEEDS_DATA = (
    "17,575 run records in 3,515 metric rows (`crsbench plan` counts the keys; the records need "
    "the images)",
    "Table 2: CRS by dataset from raw axes, bootstrap intervals, P(rank 1); section 5.1: "
    "P(top-3), paired difference of the leading two",
    "Section 5.3: AULC against full-label AUROC (0.986; 0.977 over cells), retention over cells "
    "(-0.342), largest correlation over cells (0.460), discrimination against calibration by data "
    "set (0.764, -0.279, -0.029)",
    "Section 5.5: LoRA (gains, tau by domain 0.829, 0.667, 0.448; CRS tau 0.562, rho 0.707)",
    "Section 5.6: leave one dataset out (rho 0.550, 0.709, 0.271), MIMIC-CXR predicted (0.529 "
    "against 0.864)",
    "Section 5.7: adaptive ECE, Brier, QWK, ordinal MAE, corruption-only robustness",
    "Figure 5, section 5.8: AUROC on MIMIC-CXR",
    "Figure 6: the four reductions without printed pairs; the mean reduction of ECE (0.067)",
    "Figure 7b: AUROC drop against ECE increase (r = 0.63)",
    "Section 5.10: depth sweeps, AUROC at 1 % labels, crossover with ViT-B/16",
    "Section 5.11: prompting",
)


class Check(NamedTuple):
    """One statement, its printed value, the recomputed one, and the tolerated difference."""

    statement: str
    published: float
    recomputed: float
    tolerance: float


@dataclass(frozen=True, eq=False)
class Published:
    """The published tables; encoders in the order of Table 2."""

    axes_table: pl.DataFrame
    table: pl.DataFrame
    specialization: pl.DataFrame
    calibration: pl.DataFrame
    ece_increase: pl.DataFrame

    @property
    def encoders(self) -> list[str]:
        """The names of the 15 encoders."""
        return self.table["encoder"].to_list()

    @cached_property
    def axes(self) -> Floats:
        """Normalised axes, shape (15, 4), with the one tie of printed digits broken."""
        axes = self.axes_table.select(AXES).to_numpy().copy()
        axes[self.encoders.index(TIE_ABOVE), AXES.index(TIE_AXIS)] += TIE_GAP
        return axes

    @cached_property
    def crs(self) -> Floats:
        """CRS recomputed from the axes, shape (15,)."""
        return score_cohort(self.axes, weights=PAPER_WEIGHTS).crs

    @cached_property
    def auroc(self) -> Floats:
        """Aggregate AUROC, the unrounded mean over each encoder's datasets, shape (15,)."""
        return np.nanmean(self.by_dataset("auroc"), axis=1)

    def by_dataset(self, metric: str) -> Floats:
        """Return a metric of Table 2 by encoder and dataset, shape (15, 3), NaN for no cell."""
        return self.table.select(f"{dataset}_{metric}" for dataset in DATASETS).to_numpy()


def read_published(folder: str | Path) -> Published:
    """Read the published tables.

    Raises
    ------
    CrsBenchError
        When a file is missing, or the files name other encoders or in another order.
    """
    names = ("fig2_axes", "table2", "fig4_specialization", "fig6_calibration", "fig7_ece_increase")
    paths = [Path(folder) / f"{name}.csv" for name in names]
    for path in paths:
        if not path.is_file():
            raise CrsBenchError(f"{path}: missing; it ships with the project in resources/paper")
    published = Published(*(pl.read_csv(path) for path in paths))
    for table in (published.axes_table, published.ece_increase):
        if table["encoder"].to_list() != published.encoders:
            raise CrsBenchError(
                f"{folder}: the tables differ in their encoders or the order of them"
            )
    return published


def published_reference(published: Published) -> Reference:
    """Return the published panel as a reference, in normalised units."""
    cells = tabulate_cells(
        pl.DataFrame(published.axes, schema=list(AXES)).with_columns(
            encoder=pl.Series(published.encoders), dataset=pl.lit(AGGREGATE)
        )
    )
    groups = published.table["group"]
    return Reference(
        name="CRS-Bench 2608.22059",
        units=NORMALISED,
        run=f"{SOURCE}, Figure 2 (two decimals; {TIE_ABOVE} above {TIE_BELOW} in {TIE_AXIS})",
        restricted_from="",
        panel=tuple(
            Member(name, name, group)
            for name, group in zip(published.encoders, groups, strict=True)
        ),
        cells=cells,
        anchors={AGGREGATE: Anchors(np.zeros(len(AXES)), np.ones(len(AXES)))},
        weights=PAPER_WEIGHTS,
    )


def paper_check(folder: str | Path) -> pl.DataFrame:
    """Recompute the published numbers that need no data (protocol, section 8).

    Parameters
    ----------
    folder
        The folder of the published tables, ``resources/paper``.

    Returns
    -------
    pl.DataFrame
        `PAPER_CHECK`, one row per statement, and per encoder where a statement is about each.
    """
    published = read_published(folder)
    checks = [
        *_scores(published),
        *_aurocs(published),
        *_decisions(published),
        *_moves(published),
        *_domains(published),
        *_weights(published),
        *_panels(published),
        *_insertions(published),
        *_specialization(published),
        *_informativeness(published),
        *_calibration(published),
        *_ece_increase(published),
    ]
    return _judged(checks)


def _judged(checks: Sequence[Check]) -> pl.DataFrame:
    difference = pl.col("recomputed") - pl.col("published")
    within = difference.abs() <= pl.col("tolerance") + ROUNDING
    table = pl.DataFrame(checks, schema=Check._fields, orient="row")
    judged = table.with_columns(
        difference=difference,
        verdict=pl.when(within).then(pl.lit("pass")).otherwise(pl.lit("fail")),
    )
    return judged.select(pl.col(name).cast(dtype) for name, dtype in PAPER_CHECK.items())


def _scores(published: Published) -> Iterator[Check]:
    printed = published.table["aggregate_crs"]
    for encoder, value, crs in zip(published.encoders, printed, published.crs, strict=True):
        yield Check(f"Table 2: CRS of {encoder} from its four axes", value, crs, 0.0015)


def _aurocs(published: Published) -> Iterator[Check]:
    printed = published.table["aggregate_auroc"]
    for encoder, value, auroc in zip(published.encoders, printed, published.auroc, strict=True):
        name = f"Table 2: aggregate AUROC of {encoder} as the mean of its datasets"
        yield Check(name, value, auroc, 0.001)


def _decisions(published: Published) -> Iterator[Check]:
    found = decisions(published.auroc, published.crs, encoders=published.encoders)
    printed = (
        ("Kendall's tau of AUROC and CRS", "tau_b", 0.600, 0.0005),
        ("Spearman's rho of AUROC and CRS", "rho", 0.811, 0.0005),
        ("pairs that AUROC and CRS order oppositely", "n_reversed", 21, 0),
        ("pairs of encoders", "n_pairs", 105, 0),
        ("mean absolute rank displacement", "mean_displacement", 1.87, 0.005),
        ("Top-3 overlap of AUROC and CRS", "top3_overlap", 0.667, 0.0005),
        ("Top-5 overlap of AUROC and CRS", "top5_overlap", 0.800, 0.0005),
    )
    for name, column, value, tolerance in printed:
        yield Check(f"Section 5.4: {name}", value, found[column][0], tolerance)


def _moves(published: Published) -> Iterator[Check]:
    table = rank_moves(published.auroc, published.crs, encoders=published.encoders)
    ranks = {row["encoder"]: row for row in table.iter_rows(named=True)}
    printed = {"CheXzero": (11, 5), "LLaVA-Med": (5, 11), "PanDerm": (4, 1), "DINOv2": (6, 9)}
    for encoder, (by_auroc, by_crs) in printed.items():
        found = ranks[encoder]
        yield Check(f"Section 5.4: rank of {encoder} by AUROC", by_auroc, found["auroc_rank"], 0)
        yield Check(f"Section 5.4: rank of {encoder} by CRS", by_crs, found["crs_rank"], 0)


def _domains(published: Published) -> Iterator[Check]:
    for leader, dataset in (("PanDerm", "isic"), ("MedGemma", "aptos"), ("MedSigLIP", "chexpert")):
        crs = published.table[f"{dataset}_crs"].fill_null(-np.inf).to_numpy()
        rank = mid_ranks(crs)[published.encoders.index(leader)]
        yield Check(f"Section 5.1: rank of {leader} by CRS on {dataset}", 1, rank, 0)
    inside, outside = _matched_and_other(published, "crs", "PanDerm")
    name = "Section 5.8: PanDerm's CRS on ISIC less that on the others"
    yield Check(name, 0.068, inside - outside, 0.0006)


def _matched_and_other(published: Published, metric: str, encoder: str) -> tuple[float, float]:
    """Return an encoder's metric on its matched dataset, and the mean over its others.

    A generalist has no matched dataset (NaN), and all are others.
    """
    row = published.by_dataset(metric)[published.encoders.index(encoder)]
    matched = np.array([MATCHED.get(encoder) == dataset for dataset in DATASETS])
    inside = float(row[matched][0]) if matched.any() else np.nan
    return inside, float(np.nanmean(row[~matched]))


def _weights(published: Published) -> Iterator[Check]:
    random = generator("paper check", "weights")
    draws = weight_draws(
        published.axes,
        published.encoders,
        generator=random,
        n_draws=N_WEIGHT_DRAWS,
        weights=PAPER_WEIGHTS,
    )
    found = {row["family"]: row for row in summarise_agreement(draws, ["family"]).to_dicts()}
    printed = (("axes", "axis", 0.986, 0.943), ("components", "component", 0.985, 0.924))
    for family, name, mean, lowest in printed:
        what = f"Section 5.3: tau under 500 draws of the {name} weights"
        yield Check(f"{what}, mean", mean, found[family]["tau_b_mean"], 0.005)
        yield Check(f"{what}, minimum", lowest, found[family]["tau_b_min"], 0.02)
    drawn = draws.filter(pl.col("family") != "alternative")
    unchanged = drawn.filter(pl.col("top3_overlap") == 1).height
    yield Check("Section 5.3: draws of 1,000 with the same Top-3", 1000, unchanged, 0)
    name = "Section 5.3: tau under axis weights (0.30, 0.30, 0.15, 0.25)"
    yield Check(name, 1.000, found["alternative"]["tau_b_mean"], 0)


def _panels(published: Published) -> Iterator[Check]:
    random = generator("paper check", "panels")
    table = panels(
        published.axes,
        published.encoders,
        generator=random,
        sizes=PANEL_SIZES,
        n_draws=N_DRAWS,
        weights=PAPER_WEIGHTS,
    )
    rows = summarise_agreement(table, ["kind", "size"]).to_dicts()
    found = {(row["kind"], row["size"]): row for row in rows}
    one_less = found["leave_one_out", len(published.encoders) - 1]
    yield Check("Section 5.2: tau, 15 panels of 14", 0.975, one_less["tau_b_mean"], 0.002)
    yield Check("Section 5.2: Top-3, 15 panels of 14", 1.000, one_less["top3_overlap_mean"], 0.002)
    for size, tau, top in ((12, 0.926, 0.985), (10, 0.891, 0.958)):
        exact, drawn = found["enumerated", size], found["drawn", size]
        for name, column, value in (("tau", "tau_b", tau), ("Top-3", "top3_overlap", top)):
            error = exact[f"{column}_sd"] / np.sqrt(N_DRAWS)
            what = f"Section 5.2: {name}, panels of {size}"
            mean, ours = exact[f"{column}_mean"], drawn[f"{column}_mean"]
            yield Check(f"{what}: all {exact['n']:,}", value, mean, 4 * error)
            yield Check(f"{what}: {N_DRAWS} draws", value, ours, 4 * np.sqrt(2) * error)


def _insertions(published: Published) -> Iterator[Check]:
    """Check one experiment of 90 insertions against the distribution of such experiments."""
    table = insertions(
        published.axes,
        published.encoders,
        generator=generator("paper check", "insertions"),
        n_trials=N_TRIALS * N_INSERTION_EXPERIMENTS,
        weights=PAPER_WEIGHTS,
    )
    moved = table["cumulative"].to_numpy().reshape(N_INSERTION_EXPERIMENTS, -1)
    printed = (("mean", np.mean, 0.053), ("median", np.median, 0.042), ("maximum", np.max, 0.167))
    for name, statistic, value in printed:
        found = statistic(moved, axis=1)
        what = f"Section 5.2: displacement in 90 insertions, cohort, {name}"
        yield Check(what, value, float(found.mean()), 4 * float(found.std(ddof=1)))
    largest = float(table["fixed_reference"].to_numpy().max())
    yield Check("Section 5.2: displacement, fixed reference, maximum", 0, largest, 0)


def _specialization(published: Published) -> Iterator[Check]:
    for encoder, difference, other in published.specialization.iter_rows():
        inside, outside = _matched_and_other(published, "auroc", encoder)
        _, other_crs = _matched_and_other(published, "crs", encoder)
        yield Check(f"Figure 4: other-domain CRS of {encoder}", other, other_crs, 0.0056)
        if difference is not None:
            name = f"Figure 4: matched less other AUROC of {encoder}"
            yield Check(name, difference, inside - outside, 0.0056)


def _informativeness(published: Published) -> Iterator[Check]:
    columns = dict(zip(AXES, published.axes.T, strict=True))
    pairs = [spearman(first, second) for first, second in combinations(columns.values(), 2)]
    against = spearman(columns["discrimination"], columns["label_efficiency"])
    name = "Section 5.3: rho of full-label AUROC and retention, encoders"
    yield Check(name, 0.339, float(against), 0.03)
    name = "Section 5.3: largest absolute rho of two axes, encoders"
    yield Check(name, 0.625, float(np.abs(pairs).max()), 0.03)


def _calibration(published: Published) -> Iterator[Check]:
    for row in published.calibration.drop_nulls().iter_rows(named=True):
        reduction = 100 * (1 - row["ece_after"] / row["ece_before"])
        name = f"Figure 6: reduction of ECE in %, {row['encoder']} on {row['dataset']}"
        yield Check(name, row["ece_reduction_percent"], reduction, 0.5)


def _ece_increase(published: Published) -> Iterator[Check]:
    values = published.ece_increase.select(pl.exclude("encoder"))
    n_cells = int(values.count().sum_horizontal()[0])
    yield Check("Figure 7a: cells", 43, n_cells, 0)
    largest = float(np.nanmax(values["CheXpert"].to_numpy()))
    yield Check("Figure 7a: largest mean ECE increase on CheXpert", 0.038, largest, 0)


def render_paper_check(table: pl.DataFrame) -> str:
    """Return the checks as a Markdown page, with what needs data below the table."""
    n_failed = table.filter(pl.col("verdict") == "fail").height
    lines = [
        "# The paper's numbers, recomputed",
        "",
        f"{table.height} statements of {SOURCE}, recomputed from its published tables alone: "
        f"{table.height - n_failed} pass, {n_failed} fail.",
        "",
        f"One tie of printed digits is broken: {TIE_ABOVE} and {TIE_BELOW} both have label "
        f"efficiency 0.49, and {TIE_ABOVE}'s is put higher. Left standing, {TIE_BELOW}'s CRS would "
        "be 0.467 instead of 0.424.",
        "",
        "| statement | published | recomputed | difference | tolerance | verdict |",
        "|---|---:|---:|---:|---:|---|",
        *(_markdown_row(row) for row in table.iter_rows()),
        "",
        "Tolerances are those of rounded digits; where the paper drew at random (its draws are not "
        "published) four standard errors of its number of draws. Panels are enumerated; the "
        f"distribution of 90 insertions is that of {N_INSERTION_EXPERIMENTS} experiments.",
        "",
        "## Needs data",
        "",
        *(f"- {statement}" for statement in NEEDS_DATA),
    ]
    return "\n".join(lines) + "\n"


def _markdown_row(row: tuple[str, float, float, float, float, str]) -> str:
    statement, *numbers, verdict = row
    return f"| {statement} | {' | '.join(f'{number:.4g}' for number in numbers)} | {verdict} |"
