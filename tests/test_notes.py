"""The notes beside a table of scores: what was left out is named, and `none` is said."""

import json

import polars as pl
import pytest
from panel_oracle import WEIGHTS

from crsbench.crs import AXES
from crsbench.crs_table import NEAR_TIES, NOTES
from crsbench.files import write_parquet, write_text
from crsbench.notes import notes_text, sample_lines
from crsbench.reference import Member, cohort_reference


@pytest.fixture
def reference():
    rows = [("oak", "skin", 0.9, 0.8, 0.7, 0.6), ("elm", "skin", 0.6, 0.7, 0.8, 0.9)]
    axes = pl.DataFrame(rows, schema=["encoder", "dataset", *AXES], orient="row")
    members = [Member(name, name.title(), "generalist") for name in ("oak", "elm")]
    return cohort_reference(axes, encoders=members, weights=WEIGHTS)


def text_of(reference, *, excluded=(), samples=(), about_scores=(), near_ties=()):
    return notes_text(
        reference,
        excluded=excluded,
        samples=samples,
        about_scores=pl.DataFrame(about_scores, schema=NOTES, orient="row"),
        near_ties=pl.DataFrame(near_ties, schema=NEAR_TIES, orient="row"),
    )


def test_the_reference_is_named_and_an_empty_section_says_so(reference):
    text = text_of(reference)
    assert f"- cohort {reference.digest[:12]}: 2 encoders, skin, 2 observed cells\n" in text
    assert text.count("- none\n") == text.count("\n## ") - 1


def test_excluded_cells_samples_and_scores_have_a_line_each(reference):
    text = text_of(
        reference,
        excluded=[("ash", "eye", "not there")],
        samples=["skin: 2 listed as 'no label' in exclusions.csv"],
        about_scores=[("skin", "undefined cell", "ash is left out: failed")],
    )
    for line in (
        "- ash on eye: not there\n",
        "- skin: 2 listed as 'no label' in exclusions.csv\n",
        "- skin, undefined cell: ash is left out: failed\n",
    ):
        assert line in text


def test_of_many_near_ties_twelve_are_shown_and_the_others_counted(reference):
    tie = ("skin", "oak", "elm", True, "robustness", 4e-4, -0.15)
    text = text_of(reference, near_ties=[tie] * 14)
    shown = "- skin: oak dominates elm by 4.0e-04 on robustness; CRS would change by -0.150\n"
    assert text.count(shown) == 12
    assert "- and 2 more\n" in text
    missed = text_of(reference, near_ties=[(*tie[:3], False, *tie[4:])])
    assert "oak misses elm" in missed


def test_samples_are_counted_by_reason_and_notes_of_tables_repeated(tmp_path):
    skin = tmp_path / "skin"
    skin.mkdir()
    exclusions = skin / "exclusions.csv"
    rows = ["s1,a.png,no label", "s2,b.png,unreadable: truncated", "s3,c.png,unreadable: empty"]
    write_text("\n".join(["sample,path,reason", *rows, ""]), exclusions)
    split = skin / "split.parquet"
    notes = json.dumps(["p: dropped from the averages, no positive in train"])
    write_parquet(pl.DataFrame({"sample": ["s4"]}), split, metadata={"notes": notes})
    prevalence = skin / "prevalence.csv"
    write_text('class,note\np,""\nq,q in test: none in one of them\n', prevalence)
    assert sample_lines([exclusions], [split], [prevalence]) == [
        f"skin: 1 listed as 'no label' in {exclusions}",
        f"skin: 2 listed as 'unreadable' in {exclusions}",
        "skin: p: dropped from the averages, no positive in train",
        "skin: q in test: none in one of them",
    ]


def test_a_dataset_that_lost_nothing_has_no_line(tmp_path):
    path = tmp_path / "exclusions.csv"
    write_text("sample,path,reason\n", path)
    assert sample_lines([path], [], []) == []
