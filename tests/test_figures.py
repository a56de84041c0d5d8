"""Figures: the same table gives the same bytes, and everything scored is shown and told apart."""

import numpy as np
import polars as pl
import pytest
from panel_oracle import WEIGHTS

from crsbench import figures
from crsbench.crs import AXES
from crsbench.crs_table import crs_table
from crsbench.reference import Member, cohort_reference

GROUPS = tuple(figures.GROUP_COLOURS)
DRAWN = (figures.profiles, figures.ranks)


def table_of(n_encoders=6, *, seed=0):
    random = np.random.default_rng(seed)
    names = [f"e{place}" for place in range(n_encoders)]
    rows = [(name, "skin", *random.uniform(0.5, 1, 4)) for name in names]
    axes = pl.DataFrame(rows, schema=["encoder", "dataset", *AXES], orient="row")
    members = [Member(n, n.upper(), GROUPS[i % len(GROUPS)]) for i, n in enumerate(names)]
    reference = cohort_reference(axes, encoders=members, weights=WEIGHTS)
    return crs_table(axes, encoders=members, reference=reference)


@pytest.fixture(scope="module")
def table():
    return table_of()


def texts_of(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_same_table_gives_the_same_bytes(table, draw, kind, tmp_path):
    paths = [tmp_path / f"{name}.{kind}" for name in ("first", "second")]
    for path in paths:
        figures.save(draw(table, synthetic=True), [path])
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_profiles_have_a_row_for_every_encoder_in_the_order_of_crs(table):
    figure = figures.profiles(table, synthetic=False)
    scored = table.filter(scope="aggregate")
    labels = [label.get_text().split()[0] for label in figure.axes[0].get_yticklabels()]
    assert labels == scored["label"].to_list()
    expected = [f"{v:.2f}" for v in scored.select(AXES).to_numpy().ravel()]
    assert texts_of(figure) == expected


def test_ranks_name_every_encoder_at_its_point_and_at_both_of_its_ranks(table):
    found = texts_of(figures.ranks(table, synthetic=False))
    for label in table.filter(scope="aggregate")["label"]:
        assert found.count(label) == 3


@pytest.mark.parametrize("draw", DRAWN)
def test_an_encoder_without_a_score_is_left_out_and_the_others_stay(table, draw):
    first, *_, last = table.filter(scope="aggregate")["label"]
    without = table.with_columns(
        crs=pl.when(pl.col("label") == last).then(None).otherwise(pl.col("crs"))
    )
    figure = draw(without, synthetic=False)
    shown = texts_of(figure) + [t.get_text() for t in figure.axes[0].get_yticklabels()]
    assert not any(text.startswith(last) for text in shown)
    assert any(text.startswith(first) for text in shown)


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize("synthetic", [True, False])
def test_synthetic_images_are_named_under_the_picture(table, draw, synthetic):
    figure = draw(table, synthetic=synthetic)
    assert ("medicine" in figure.get_supxlabel()) == synthetic


def test_a_group_without_a_colour_is_refused(table):
    with pytest.raises(KeyError, match="unheard_of"):
        figures.ranks(table.with_columns(group=pl.lit("unheard_of")), synthetic=False)


def test_a_format_without_fixed_metadata_is_refused(table, tmp_path):
    with pytest.raises(KeyError, match="jpg"):
        figures.save(figures.profiles(table, synthetic=False), [tmp_path / "profiles.jpg"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", range(5))
def test_crowded_labels_are_moved_apart_and_keep_their_order(seed):
    heights = sorted(np.random.default_rng(seed).uniform(0, 1, 12).tolist(), reverse=True)
    moved = figures._apart(heights, least=0.06)
    assert (-np.diff(moved)).min() >= 0.06 - 1e-12
    assert np.mean(moved) == pytest.approx(np.mean(heights))


def test_labels_that_are_apart_already_stay():
    assert figures._apart([0.9, 0.5, 0.1], least=0.2) == [0.9, 0.5, 0.1]
