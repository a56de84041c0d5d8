"""References: cohorts, digests, restriction, anchors that move."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from panel_oracle import WEIGHTS
from small_cohort import DATASETS, ENCODERS, axes_frame, cohort

from crsbench.crs import AXES
from crsbench.errors import CrsBenchError
from crsbench.reference import (
    AGGREGATE,
    Member,
    anchor_moves,
    cohort_reference,
    tabulate_cells,
)


class TestCohort:
    def test_scopes_are_the_aggregate_and_each_dataset_with_its_own_members(self):
        scopes = cohort().scopes
        assert tuple(scopes) == (AGGREGATE, *DATASETS)
        assert scopes["eye"].members == tuple("acdef")
        assert scopes[AGGREGATE].members == tuple("abcdef")

    def test_aggregate_is_the_mean_of_observed_datasets(self):
        axes = axes_frame()
        for member, row in zip(ENCODERS, cohort(axes).scopes[AGGREGATE].axes, strict=True):
            mine = axes.filter(pl.col("encoder") == member.encoder).select(AXES).to_numpy()
            np.testing.assert_allclose(row, mine.mean(axis=0), rtol=1e-15)

    def test_anchors_are_the_extremes_of_the_panel(self):
        scope = cohort().scopes["eye"]
        np.testing.assert_array_equal(scope.anchors.lower, scope.axes.min(axis=0))
        np.testing.assert_array_equal(scope.anchors.upper, scope.axes.max(axis=0))

    def test_cell_with_an_undefined_axis_is_not_observed(self):
        is_cell = (pl.col("encoder") == "a") & (pl.col("dataset") == "skin")
        value = pl.when(is_cell).then(None).otherwise(pl.col("robustness"))
        scopes = cohort(axes_frame().with_columns(robustness=value)).scopes
        assert "a" not in scopes["skin"].members
        assert "a" in scopes[AGGREGATE].members

    def test_zero_width_anchor_leaves_its_scope_undefined_and_the_others_alone(self):
        flat = pl.when(pl.col("dataset") == "eye").then(0.5).otherwise(pl.col("calibration"))
        scopes = cohort(axes_frame().with_columns(calibration=flat)).scopes
        assert (
            scopes["eye"].undefined
            == "anchors of calibration have zero width: all members are at 0.5"
        )
        assert not scopes["skin"].undefined

    def test_dataset_of_one_encoder_is_undefined(self):
        without = [(name, "eye") for name in "bcdef"]
        scope = cohort(axes_frame(without=without)).scopes["eye"]
        assert scope.undefined == "a panel needs two encoders or more, not 1"

    def test_digest_depends_on_every_part_of_the_content(self):
        axes = axes_frame()
        moved = axes.with_columns(robustness=pl.col("robustness") + 1e-15)
        weights = replace(WEIGHTS, axes=(0.3, 0.3, 0.15, 0.25))
        digests = {
            cohort(axes).digest,
            cohort(moved).digest,
            cohort(axes, name="other").digest,
            cohort(axes, run="other").digest,
            cohort(axes, ENCODERS[::-1]).digest,
            cohort_reference(axes, encoders=ENCODERS, weights=weights).digest,
        }
        assert len(digests) == 6
        assert cohort(axes).digest == cohort(axes).digest


class TestRestriction:
    def test_part_has_its_own_name_and_digest_and_says_where_it_is_from(self):
        whole = cohort()
        part = whole.restrict(["chest", "skin"])
        assert part.name == "cohort[skin+chest]"
        assert part.digest != whole.digest
        assert part.restricted_from == f"cohort {whole.digest}"

    def test_aggregate_is_over_the_kept_datasets_and_domains_stay(self):
        whole, part = cohort(), cohort().restrict(["skin"])
        np.testing.assert_array_equal(part.scopes[AGGREGATE].axes, whole.scopes["skin"].axes)
        np.testing.assert_array_equal(
            part.scopes[AGGREGATE].anchors.lower, whole.scopes["skin"].anchors.lower
        )
        assert tuple(part.scopes) == (AGGREGATE, "skin")

    def test_members_without_a_kept_cell_leave_the_panel(self):
        assert cohort().restrict(["eye"]).scopes[AGGREGATE].members == tuple("acdef")

    def test_all_datasets_is_the_reference_itself(self):
        whole = cohort()
        assert whole.restrict(DATASETS[::-1]) is whole

    def test_order_of_the_datasets_does_not_matter(self):
        parts = (cohort().restrict(order) for order in (("eye", "skin"), ("skin", "eye")))
        assert len({part.digest for part in parts}) == 1

    @pytest.mark.parametrize(
        ("datasets", "named"), [(["skin", "lung"], "lung"), ([], "none given")]
    )
    def test_dataset_that_the_reference_lacks(self, datasets, named):
        with pytest.raises(
            CrsBenchError, match=f"cohort has no dataset .*{named}.*skin, eye, chest"
        ):
            cohort().restrict(datasets)


class TestAnchorMoves:
    def test_same_cohort_moves_nothing(self):
        assert anchor_moves(cohort(), cohort()).is_empty()

    def test_encoder_beyond_an_anchor_moves_it_by_what_is_listed(self):
        before = cohort()
        new = pl.DataFrame(
            [("z", "skin", 0.7, 0.7, 1.2, 0.7)], schema=axes_frame().schema, orient="row"
        )
        after = cohort(pl.concat([axes_frame(), new]), (*ENCODERS, Member("z", "Z", "new")))
        moves = anchor_moves(before, after).filter(pl.col("scope") == "skin")
        assert moves.select("axis", "anchor", "set_by").rows() == [
            ("label_efficiency", "upper", "z")
        ]
        old = before.scopes["skin"].anchors
        width = old.upper[2] - old.lower[2]
        assert moves["moved"][0] == 1.2 - old.upper[2]
        assert moves["share_of_width"][0] == pytest.approx((1.2 - old.upper[2]) / width)


class TestErrors:
    def test_unknown_axis_column(self):
        with pytest.raises(CrsBenchError, match="column robustness missing; needed: encoder"):
            tabulate_cells(axes_frame().rename({"robustness": "robustnes"}))

    def test_axis_that_is_text(self):
        with pytest.raises(CrsBenchError, match="calibration has type String, not numbers"):
            tabulate_cells(axes_frame().with_columns(calibration=pl.lit("0.9")))

    def test_repeated_cell(self):
        with pytest.raises(CrsBenchError, match="encoder a stands twice on skin"):
            tabulate_cells(pl.concat([axes_frame(), axes_frame().head(1)]))

    def test_duplicate_encoder(self):
        with pytest.raises(CrsBenchError, match="encoders: a named twice"):
            cohort(encoders=(*ENCODERS, ENCODERS[0]))

    def test_encoder_of_the_axes_that_the_run_does_not_name(self):
        with pytest.raises(CrsBenchError, match="encoder f is none of the run's: a, b"):
            cohort(encoders=ENCODERS[:-1])
