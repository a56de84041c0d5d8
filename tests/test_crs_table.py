"""The CRS table: scopes, ranks, references, and what the notes say."""

import numpy as np
import polars as pl
import pytest
from panel_oracle import WEIGHTS

from crsbench.crs import AXES, score_cohort
from crsbench.crs_table import (
    CRS_TABLE,
    crs_notes,
    crs_table,
    member_axes,
    near_ties,
    read_crs_table,
)
from crsbench.errors import CrsBenchError
from crsbench.files import write_csv
from crsbench.reference import AGGREGATE, Member, cohort_reference
from crsbench.reference_files import freeze_reference, load_reference

DATASETS = ("skin", "eye", "chest")
ENCODERS = tuple(Member(name, name.upper(), "group") for name in "abcdef")
NEW = Member("z", "Z", "new")
SCORES = ("crs", "dominance", "ideal_point", "worst_axis")


def axes_frame(rows=None, *, without=(("b", "eye"),)):
    random = np.random.default_rng(0)
    if rows is None:
        names = [(member.encoder, dataset) for member in ENCODERS for dataset in DATASETS]
        rows = [(*name, *random.uniform(0.5, 1, 4)) for name in names]
    schema = {"encoder": pl.String, "dataset": pl.String} | dict.fromkeys(AXES, pl.Float64)
    kept = [row for row in rows if row[:2] not in without]
    return pl.DataFrame(kept, schema=schema, orient="row")


def with_rows(*rows):
    return pl.concat([axes_frame(), axes_frame(rows)])


def cohort(axes=None, encoders=ENCODERS):
    axes = axes_frame() if axes is None else axes
    return cohort_reference(axes, encoders=encoders, weights=WEIGHTS)


def scored(axes=None, encoders=ENCODERS, reference=None):
    axes = axes_frame() if axes is None else axes
    reference = cohort(axes, encoders) if reference is None else reference
    return crs_table(axes, encoders=encoders, reference=reference)


def notes(axes=None, encoders=ENCODERS, reference=None, previous=None):
    axes = axes_frame() if axes is None else axes
    reference = cohort(axes, encoders) if reference is None else reference
    return crs_notes(axes, encoders=encoders, reference=reference, previous=previous)


def in_scope(table, scope):
    return table.filter(pl.col("scope") == scope)


class TestCohort:
    def test_scopes_stand_in_order_and_rows_by_rank(self):
        table = scored()
        assert table.schema == CRS_TABLE
        assert table["scope"].unique(maintain_order=True).to_list() == [AGGREGATE, *DATASETS]
        for scope in (AGGREGATE, *DATASETS):
            rows = in_scope(table, scope)
            assert rows["rank"].to_list() == list(range(1, rows.height + 1))
            assert rows["crs"].is_sorted(descending=True)

    def test_missing_cell_has_no_row_and_is_not_imputed(self):
        table = scored()
        assert "b" not in in_scope(table, "eye")["encoder"]
        row = in_scope(table, AGGREGATE).row(by_predicate=pl.col("encoder") == "b", named=True)
        assert (row["n_cells"], row["datasets"]) == (2, "skin;chest")
        mean = axes_frame().filter(pl.col("encoder") == "b")["robustness"].mean()
        assert row["raw_robustness"] == pytest.approx(mean, rel=1e-15)

    def test_domain_has_its_own_panel_and_anchors(self):
        eye = axes_frame().filter(pl.col("dataset") == "eye")
        expected = score_cohort(eye.select(AXES).to_numpy(), weights=WEIGHTS)
        table = in_scope(scored(), "eye").sort("encoder")
        for name in SCORES:
            np.testing.assert_array_equal(table[name], getattr(expected, name))

    def test_auroc_is_the_raw_discrimination_and_is_ranked(self):
        rows = in_scope(scored(), "skin").sort("auroc", descending=True)
        assert rows["auroc"].equals(rows["raw_discrimination"].alias("auroc"))
        assert rows["auroc_rank"].to_list() == [1, 2, 3, 4, 5, 6]

    def test_saturated_axes_are_those_at_an_anchor(self):
        for row in scored().iter_rows(named=True):
            at = [name for name in AXES if row[name] in (0, 1)]
            assert row["saturated"] == ";".join(at)

    def test_equal_scores_share_the_rank_and_stand_in_the_encoders_order(self):
        rows = [
            (name, "skin", *[value] * 4)
            for name, value in zip("abcd", (0.5, 0.9, 0.7, 0.7), strict=True)
        ]
        for order in ("abcd", "abdc"):
            encoders = [Member(name, name, "") for name in order]
            table = in_scope(scored(axes_frame(rows), encoders), "skin")
            tied = [name for name in order if name in "cd"]
            assert table["encoder"].to_list() == ["b", *tied, "a"]
            assert table["rank"].to_list() == [1, 2, 2, 4]

    def test_permuting_encoders_and_rows_permutes_the_table(self):
        table = scored(axes_frame().reverse(), ENCODERS[::-1]).drop("reference_digest")
        key = ["scope", "encoder"]
        assert (
            table.drop("datasets")
            .sort(key)
            .select(key, "rank")
            .equals(scored().sort(key).select(key, "rank"))
        )
        for name in SCORES:
            np.testing.assert_allclose(
                table.sort(key)[name], scored().sort(key)[name], rtol=0, atol=1e-14
            )

    def test_every_row_carries_the_reference(self):
        table = scored()
        assert table["reference"].unique().to_list() == ["cohort"]
        assert table["reference_digest"].unique().to_list() == [cohort().digest]

    def test_written_table_reads_back_unchanged(self, tmp_path):
        write_csv(scored(), tmp_path / "crs.csv")
        assert read_crs_table(tmp_path / "crs.csv").equals(scored())

    def test_undefined_cell_keeps_a_row_without_scores_and_leaves_the_panel(self):
        is_cell = (pl.col("encoder") == "a") & (pl.col("dataset") == "skin")
        axes = axes_frame().with_columns(
            robustness=pl.when(is_cell).then(None).otherwise(pl.col("robustness"))
        )
        row = in_scope(scored(axes), "skin").row(-1, named=True)
        assert (row["encoder"], row["rank"], row["crs"], row["n_cells"]) == ("a", None, None, 0)
        others = in_scope(scored(axes), "skin").head(5).sort("encoder")
        panel = axes.filter((pl.col("dataset") == "skin") & ~is_cell).select(AXES).to_numpy()
        np.testing.assert_array_equal(others["crs"], score_cohort(panel, weights=WEIGHTS).crs)
        assert "a is left out: robustness undefined" in notes(axes)["note"].to_list()

    def test_encoder_without_any_defined_cell_keeps_its_rows(self):
        axes = with_rows(("z", "skin", None, 0.5, 0.5, 0.5))
        rows = scored(axes, [*ENCODERS, NEW]).filter(pl.col("encoder") == "z")
        assert rows["scope"].to_list() == [AGGREGATE, "skin"]
        assert rows["crs"].to_list() == [None, None]

    def test_zero_width_anchor_leaves_one_scope_without_scores_and_says_so(self):
        flat = pl.when(pl.col("dataset") == "eye").then(0.5).otherwise(pl.col("calibration"))
        axes = axes_frame().with_columns(calibration=flat)
        assert in_scope(scored(axes), "eye")["crs"].to_list() == [None] * 5
        assert in_scope(scored(axes), "eye")["auroc_rank"].null_count() == 0
        assert in_scope(scored(axes), "skin")["crs"].null_count() == 0
        said = notes(axes).filter(pl.col("kind") == "undefined scope").rows()
        assert said == [
            (
                "eye",
                "undefined scope",
                "no scores: anchors of calibration have zero width: all members are at 0.5",
            )
        ]

    def test_run_of_one_encoder_has_rows_and_a_note(self):
        axes = axes_frame().filter(pl.col("encoder") == "a")
        table = scored(axes, ENCODERS[:1])
        assert table["crs"].to_list() == [None] * 4
        assert table["auroc"].null_count() == 0
        assert set(notes(axes, ENCODERS[:1])["kind"]) == {"undefined scope"}


class TestFixedReference:
    @pytest.fixture
    def frozen(self, tmp_path):
        freeze_reference(cohort(), tmp_path / "r.json")
        return load_reference(tmp_path / "r.json")

    def test_candidates_move_no_existing_score(self, frozen):
        before = scored(reference=frozen)
        random = np.random.default_rng(1)
        rows = [("z", dataset, *random.uniform(0.4, 1.1, 4)) for dataset in DATASETS]
        after = scored(with_rows(*rows), [*ENCODERS, NEW], frozen)
        kept = after.filter(pl.col("encoder") != "z")
        columns = ["scope", "encoder", *SCORES, *AXES, "saturated", "reference_digest"]
        assert kept.select(columns).equals(before.select(columns))
        assert after.height == before.height + 4

    def test_same_run_scores_as_in_its_cohort(self, frozen):
        assert scored(reference=frozen).equals(scored())

    def test_run_on_fewer_datasets_is_scored_against_the_part(self, frozen):
        axes = axes_frame().filter(pl.col("dataset") != "chest")
        table = scored(axes, reference=frozen)
        assert table["reference"].unique().to_list() == ["cohort[skin+eye]"]
        assert table["rank"].null_count() == 0
        said = notes(axes, reference=frozen).filter(pl.col("kind") == "restricted")["note"][0]
        assert said.startswith("all encoders: scored against cohort[skin+eye], a part of cohort ")

    def test_candidate_with_fewer_datasets_stands_apart(self, frozen):
        axes = with_rows(("z", "skin", 0.9, 0.9, 0.9, 0.9))
        table = in_scope(scored(axes, [*ENCODERS, NEW], frozen), AGGREGATE)
        row = table.row(-1, named=True)
        assert (row["encoder"], row["rank"], row["reference"]) == ("z", None, "cohort[skin]")
        assert row["reference_digest"] == frozen.restrict(["skin"]).digest
        alone = scored(axes.filter(pl.col("dataset") == "skin"), [*ENCODERS, NEW], frozen)
        expected = in_scope(alone, AGGREGATE).row(by_predicate=pl.col("encoder") == "z", named=True)
        assert row["crs"] == expected["crs"]
        said = notes(axes, [*ENCODERS, NEW], frozen).filter(pl.col("kind") == "restricted")
        assert said["note"][0].endswith("; not ranked")

    def test_dataset_that_the_reference_lacks(self, frozen):
        axes = with_rows(("a", "lung", 0.9, 0.9, 0.9, 0.9))
        with pytest.raises(CrsBenchError, match="no dataset lung; it has skin, eye, chest"):
            scored(axes, reference=frozen)

    def test_member_with_other_axes_than_frozen_is_named(self, frozen):
        axes = axes_frame().with_columns(robustness=pl.col("robustness") + 0.001)
        said = notes(axes, reference=frozen).filter(pl.col("kind") == "changed member")
        assert said.height == 6 + 6 + 5 + 6
        assert "differ from the reference's by up to 0.001" in said["note"][0]

    def test_repeated_saturation_advises_a_successor(self, frozen):
        rows = [(name, dataset, 0.7, 0.7, 1.2, 0.7) for name in "yz" for dataset in DATASETS]
        encoders = [*ENCODERS, Member("y", "Y", "new"), NEW]
        said = notes(with_rows(*rows), encoders, frozen).filter(pl.col("kind") == "saturation")
        expected = "2 beyond the upper anchor of label_efficiency; repeated: a successor reference"
        assert said["scope"].to_list() == [AGGREGATE, *DATASETS]
        assert all(note.startswith(expected) for note in said["note"])


class TestNotes:
    def test_member_with_missing_cells_is_named_with_the_anchors_that_it_sets(self):
        best = pl.when(pl.col("encoder") == "b").then(1.0).otherwise(pl.col("calibration"))
        said = notes(axes_frame().with_columns(calibration=best))
        said = said.filter(pl.col("kind") == "missing cells")["note"].to_list()
        assert len(said) == 1
        assert said[0].startswith("b has 2 of 3 datasets and sets ")
        assert "the upper anchor of calibration" in said[0]

    def test_anchors_that_moved_since_an_earlier_cohort_are_listed(self):
        rows = [("z", dataset, 0.7, 0.7, 1.2, 0.7) for dataset in DATASETS]
        said = notes(with_rows(*rows), [*ENCODERS, NEW], previous=cohort())
        moved = said.filter(pl.col("kind") == "anchor moved")
        assert moved["scope"].to_list() == [AGGREGATE, *DATASETS]
        assert all("to 1.2 (+" in note and "now set by z" in note for note in moved["note"])

    def test_complete_cohort_needs_no_note(self):
        complete = axes_frame(without=[("b", dataset) for dataset in DATASETS])
        assert notes(complete, ENCODERS).is_empty()


class TestNearTies:
    def ties(self, first, second, within=1e-3):
        """Dominance ties of two encoders between two that set the anchors at 0 and 1."""
        rows = zip("lhab", ([0] * 4, [1] * 4, first, second), strict=True)
        axes = axes_frame([(name, "skin", *map(float, row)) for name, row in rows])
        encoders = [Member(name, name, "") for name in "lhab"]
        reference = cohort(axes, encoders)
        table = near_ties(axes, encoders=encoders, reference=reference, within=within)
        return in_scope(table, "skin").drop("scope").rows()

    def test_dominance_that_hangs_on_one_axis_is_listed_with_what_would_be_lost(self):
        found = self.ties([0.5, 0.5, 0.5, 0.5005], [0.3, 0.3, 0.3, 0.5])
        assert found == [("a", "b", True, "robustness", pytest.approx(5e-4), pytest.approx(-0.2))]

    def test_dominance_that_just_fails_is_listed_with_what_would_be_gained(self):
        found = self.ties([0.5, 0.5, 0.5, 0.4995], [0.3, 0.3, 0.3, 0.5])
        assert found == [("a", "b", False, "robustness", pytest.approx(5e-4), pytest.approx(0.2))]

    def test_clear_relations_are_not_listed(self):
        assert self.ties([0.5, 0.5, 0.5, 0.51], [0.3, 0.3, 0.3, 0.5]) == []
        assert self.ties([0.5, 0.5, 0.5, 0.4], [0.3, 0.3, 0.3, 0.5]) == []

    @pytest.mark.parametrize("change", [4e-4, -4e-4])
    def test_only_listed_relations_turn_over_under_small_changes(self, change):
        axes, reference = axes_frame(without=()), cohort(axes_frame(without=()))
        listed = near_ties(axes, encoders=ENCODERS, reference=reference, within=1e-3)
        listed = {row[:3] for row in listed.iter_rows()}
        before = scored(axes, reference=reference)
        for member in ENCODERS:
            moved = axes.with_columns(
                pl.when(pl.col("encoder") == member.encoder)
                .then(pl.col(AXES) + change * 0.3)
                .otherwise(pl.col(AXES))
            )
            after = scored(moved, reference=reference)
            both = before.join(after, on=["scope", "encoder"])
            changed = both.filter(pl.col("dominance") != pl.col("dominance_right"))
            assert set(changed.select("scope", "encoder").rows()) <= {row[:2] for row in listed}


def test_member_axes_give_back_the_observed_cells():
    assert member_axes(cohort()).equals(axes_frame())
