"""The notes beside a table of scores: what was left out is named, and `none` is said."""

import json

import polars as pl
import pytest
from panel_oracle import WEIGHTS

from crsbench.crs import AXES
from crsbench.crs_table import NEAR_TIES, NOTES
from crsbench.files import write_parquet, write_text
from crsbench.notes import feature_lines, notes_text, sample_lines
from crsbench.reference import Member, cohort_reference


@pytest.fixture
def reference():
    rows = [("oak", "skin", 0.9, 0.8, 0.7, 0.6), ("elm", "skin", 0.6, 0.7, 0.8, 0.9)]
    axes = pl.DataFrame(rows, schema=["encoder", "dataset", *AXES], orient="row")
    members = [Member(name, name.title(), "generalist") for name in ("oak", "elm")]
    return cohort_reference(axes, encoders=members, weights=WEIGHTS)


def text_of(reference, *, excluded=(), samples=(), about_scores=(), near_ties=(), features=()):
    return notes_text(
        reference,
        excluded=excluded,
        samples=samples,
        about_scores=pl.DataFrame(about_scores, schema=NOTES, orient="row"),
        near_ties=pl.DataFrame(near_ties, schema=NEAR_TIES, orient="row"),
        features=features,
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
        features=["oak on skin: collapsed: all 9 rows are equal"],
    )
    for line in (
        "- ash on eye: not there\n",
        "- skin: 2 listed as 'no label' in exclusions.csv\n",
        "- skin, undefined cell: ash is left out: failed\n",
        "- oak on skin: collapsed: all 9 rows are equal\n",
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
    rows = ['train,p,1200,""', "train,q,1200,", "test,p,40,", "test,q,40,q in test: none in one"]
    write_text("\n".join(["set,class,n_images,note", *rows, ""]), prevalence)
    assert sample_lines([exclusions], [split], [prevalence]) == [
        "skin: images: train 1,200, test 40",
        f"skin: 1 listed as 'no label' in {exclusions}",
        f"skin: 2 listed as 'unreadable' in {exclusions}",
        "skin: p: dropped from the averages, no positive in train",
        "skin: q in test: none in one",
    ]


def test_a_dataset_that_lost_nothing_has_no_line(tmp_path):
    path = tmp_path / "exclusions.csv"
    write_text("sample,path,reason\n", path)
    assert sample_lines([path], [], []) == []


def records_of(*rows):
    columns = ["encoder", "target", "feature_values_digest", "feature_flags"]
    return pl.DataFrame([row for row in rows for _ in range(2)], schema=columns, orient="row")


def test_suspect_features_have_a_line_each_and_sound_ones_none():
    records = records_of(
        ("oak", "skin", "1", ""),
        ("elm", "skin", "2", "3 of 8 columns are constant"),
        ("ash", "skin", "1", ""),
        ("ash", "eye", "1", ""),
    )
    assert feature_lines(records) == [
        "elm on skin: 3 of 8 columns are constant",
        "ash and oak on skin: bit-identical features; are the weights or the options of one "
        "ignored?",
    ]
    assert feature_lines(records_of(("oak", "skin", "1", ""), ("elm", "skin", "2", ""))) == []
