"""Figures: pictures of tables, computing nothing.

The same table gives the same bytes: no dates, fixed hashes, one font that matplotlib brings.
"""

from collections.abc import Iterable
from pathlib import Path

import matplotlib as mpl
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from crsbench.crs import AXES
from crsbench.files import written_atomically

TITLES = {
    "discrimination": "Discrim.",
    "calibration": "Calib.",
    "label_efficiency": "Label eff.",
    "robustness": "Robust.",
}
#: Colours of the panel groups: Okabe and Ito's, told apart by colour-blind readers too.
GROUP_COLOURS = {
    "generalist": "#0072B2",
    "broad_medical": "#009E73",
    "medical_multimodal": "#E69F00",
    "specialty": "#CC79A7",
    "baseline": "#666666",
}
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "crsbench",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
}
_NO_DATES = {
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
_LABEL_HEIGHT = 0.042  # of a label in the scatter plot, as a share of the axis
_SYNTHETIC = "Synthetic images: the scores say nothing about medicine."


def profiles(table: pl.DataFrame, *, synthetic: bool) -> Figure:
    """Draw the normalised axes of the encoders as a heat map, ordered by CRS."""
    scored = _scored(table)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.4, 1.3 + 0.30 * max(scored.height, 2)), layout="constrained")
        axes = figure.add_subplot()
        values = scored.select(AXES).to_numpy()
        picture = axes.imshow(values, cmap="viridis", vmin=0, vmax=1, aspect="auto")
        for (row, column), value in _cells(values):
            dark = value < 0.6
            axes.text(
                column, row, f"{value:.2f}", ha="center", va="center", fontsize=8,
                color="white" if dark else "black",
            )  # fmt: skip
        axes.set_xticks(range(len(AXES)), [TITLES[name] for name in AXES])
        labels = [f"{row['label']}   {row['crs']:.3f}" for row in scored.iter_rows(named=True)]
        axes.set_yticks(range(scored.height), labels)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title("Normalised axes, ordered by CRS (beside the name)", fontsize=9, loc="left")
        figure.colorbar(picture, ax=axes, label="worst to best of the panel", shrink=0.9)
        _mark_synthetic(figure, synthetic=synthetic)
    return figure


def ranks(table: pl.DataFrame, *, synthetic: bool) -> Figure:
    """Draw AUROC against CRS, and how the ranks move from one to the other."""
    scored = _scored(table)
    with mpl.rc_context(_STYLE):
        height = max(3.2, 1.2 + 0.26 * scored.height)
        figure = Figure(figsize=(9.2, height), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
        _scatter(left, scored)
        _displacement(right, scored)
        _mark_synthetic(figure, synthetic=synthetic)
    return figure


def save(figure: Figure, paths: Iterable[str | Path]) -> None:
    """Write a figure once per path, in the format of its suffix."""
    for path in map(Path, paths):
        kind = path.suffix.removeprefix(".")
        with mpl.rc_context(_STYLE), written_atomically(path) as temporary:
            figure.savefig(temporary, format=kind, dpi=200, metadata=_NO_DATES[kind])


def _scored(table: pl.DataFrame) -> pl.DataFrame:
    return table.filter(pl.col("scope") == "aggregate", pl.col("crs").is_not_null())


def _cells(values: "mpl.typing.ArrayLike") -> Iterable[tuple[tuple[int, int], float]]:
    return (
        ((row, column), float(value))
        for row, line in enumerate(values)
        for column, value in enumerate(line)
    )


def _scatter(axes: Axes, scored: pl.DataFrame) -> None:
    for group in scored["group"].unique(maintain_order=True):
        rows = scored.filter(pl.col("group") == group)
        name = group.replace("_", " ")
        axes.scatter(rows["auroc"], rows["crs"], color=GROUP_COLOURS[group], label=name, s=28)
    axes.margins(x=0.18, y=0.10)
    lines = axes.get_ylim()[1] - axes.get_ylim()[0]
    heights = _apart(scored["crs"].to_list(), least=_LABEL_HEIGHT * lines)
    for row, height in zip(scored.iter_rows(named=True), heights, strict=True):
        axes.annotate(
            row["label"], (row["auroc"], row["crs"]), xytext=(8, height),
            textcoords=("offset points", "data"), fontsize=7.5, va="center",
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "#999999", "shrinkB": 3},
        )  # fmt: skip
    axes.set_xlabel("macro-AUROC, clean, all labels (mean over datasets)")
    axes.set_ylabel("Clinical Reliability Score")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def _apart(heights: list[float], *, least: float) -> list[float]:
    """Move descending heights so that neighbours are at least `least` apart, as little as can be.

    Each run of crowded heights is spread evenly about its own mean.
    """
    runs: list[list[float]] = []
    for height in heights:
        runs.append([height])
        while len(runs) > 1 and _edge(runs[-2], least, -1) - _edge(runs[-1], least, 1) < least:
            runs[-2:] = [runs[-2] + runs[-1]]
    return [_edge(run, least, 1) - least * place for run in runs for place in range(len(run))]


def _edge(run: list[float], least: float, side: int) -> float:
    return sum(run) / len(run) + side * least * (len(run) - 1) / 2


def _displacement(axes: Axes, scored: pl.DataFrame) -> None:
    for row in scored.iter_rows(named=True):
        ends = (row["auroc_rank"], row["rank"])
        moved = ends[0] != ends[1]
        axes.plot(
            (0, 1), ends, marker="o", markersize=4, color=GROUP_COLOURS[row["group"]],
            alpha=1.0 if moved else 0.45, linewidth=1.6 if moved else 1.0,
        )  # fmt: skip
        axes.text(-0.06, ends[0], row["label"], ha="right", va="center", fontsize=7.5)
        axes.text(1.06, ends[1], row["label"], ha="left", va="center", fontsize=7.5)
    axes.set_xlim(-0.75, 1.75)
    axes.set_ylim(scored.height + 0.6, 0.4)
    axes.set_xticks((0, 1), ("rank by AUROC", "rank by CRS"))
    axes.set_yticks(())
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _mark_synthetic(figure: Figure, *, synthetic: bool) -> None:
    if synthetic:
        figure.supxlabel(_SYNTHETIC, fontsize=7, color="#777777", x=0.01, ha="left")
