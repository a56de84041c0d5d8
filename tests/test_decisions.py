"""Decisions and informativeness: known values, SciPy as the oracle, small panels, broken input."""

import numpy as np
import polars as pl
import pytest
from scipy import stats

from crsbench.axes import AXES_TABLE
from crsbench.decisions import (
    CONSTRUCTS,
    CORRELATIONS,
    DECISIONS,
    REVERSED_PAIRS,
    correlations,
    decisions,
    informativeness,
    rank_moves,
    reversed_pairs,
)
from crsbench.errors import CrsBenchError

NAMES = ("a", "b", "c", "d", "e", "f")
AUROC = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
CRS = np.array([0.52, 0.6, 0.1, 0.3, 0.2, 0.0])


class TestDecisions:
    def test_a_panel_compared_by_hand(self):
        row = decisions(AUROC, CRS, encoders=NAMES).row(0, named=True)
        assert row["n_pairs"] == 15
        assert row["n_reversed"] == 3
        assert row["tau_b"] == pytest.approx(1 - 2 * 3 / 15)
        assert row["rho"] == pytest.approx(stats.spearmanr(AUROC, CRS).statistic)
        assert row["mean_displacement"] == pytest.approx((1 + 1 + 2 + 1 + 1 + 0) / 6)
        assert row["max_displacement"] == 2
        assert row["top3_overlap"] == pytest.approx(2 / 3)
        assert row["top5_overlap"] == 1
        assert row["reason"] is None

    def test_reversed_pairs_are_named_with_who_leads_where(self):
        table = reversed_pairs(AUROC, CRS, encoders=NAMES)
        assert table.schema == REVERSED_PAIRS
        assert table.select("higher_auroc", "higher_crs").rows() == [
            ("c", "d"),
            ("c", "e"),
            ("a", "b"),
        ]
        assert (table.select("auroc_difference", "crs_difference").to_numpy() > 0).all()

    def test_a_tie_is_no_reversal(self):
        tied = np.array([0.5, 0.5, 0.4, 0.3, 0.2, 0.1])
        assert decisions(AUROC, tied, encoders=NAMES)["n_reversed"].item() == 0
        assert reversed_pairs(AUROC, tied, encoders=NAMES).is_empty()

    def test_moves_stand_in_the_order_of_crs_and_rising_is_positive(self):
        table = rank_moves(AUROC, CRS, encoders=NAMES)
        assert table["encoder"].to_list() == ["b", "a", "d", "e", "c", "f"]
        assert table["displacement"].to_list() == [1, -1, 1, 1, -2, 0]

    def test_permuting_the_panel_changes_nothing(self):
        order = np.array([3, 0, 5, 1, 4, 2])
        names = [NAMES[place] for place in order]
        permuted = decisions(AUROC[order], CRS[order], encoders=names)
        assert permuted.equals(decisions(AUROC, CRS, encoders=NAMES))

    def test_on_a_small_panel_the_tops_are_null_with_a_reason(self):
        table = decisions(AUROC[:2], CRS[:2], encoders=NAMES[:2])
        assert table.schema == DECISIONS
        row = table.row(0, named=True)
        assert row["tau_b"] == -1
        assert row["top3_overlap"] is None
        assert row["top5_overlap"] is None
        assert row["reason"] == ("top 3 of 2 encoders is everyone; top 5 of 2 encoders is everyone")

    @pytest.mark.parametrize("n", [0, 1])
    def test_fewer_than_two_encoders_are_null_with_a_reason(self, n):
        row = decisions(AUROC[:n], CRS[:n], encoders=NAMES[:n]).row(0, named=True)
        assert row["reason"] == f"{n} encoders have both"
        assert row["tau_b"] is None
        assert rank_moves(AUROC[:n], CRS[:n], encoders=NAMES[:n]).height == n

    @pytest.mark.parametrize("analysis", [decisions, reversed_pairs, rank_moves])
    def test_an_undefined_score_is_refused_by_name(self, analysis):
        with pytest.raises(CrsBenchError, match="CRS of b is undefined"):
            analysis(AUROC[:2], np.array([1, np.nan]), encoders=NAMES[:2])

    def test_arrays_of_another_length_are_refused(self):
        with pytest.raises(CrsBenchError, match=r"AUROC: shape \(6,\), expected \(2,\)"):
            decisions(AUROC, CRS, encoders=NAMES[:2])


class TestInformativeness:
    @pytest.fixture
    def cells(self):
        random = np.random.default_rng(2)
        rows = [
            {"encoder": encoder, "dataset": dataset}
            | {name: random.uniform(0.5, 1) + 3 * (dataset == "y") for name in CONSTRUCTS}
            for encoder in NAMES
            for dataset in ("x", "y")
            if (encoder, dataset) != ("f", "y")
        ]
        return pl.DataFrame(rows, schema=AXES_TABLE)

    def pick(self, cells, level, dataset=None):
        table = informativeness(cells)
        rows = table.filter(
            pl.col("level") == level, pl.col("dataset").eq_missing(pl.lit(dataset, pl.String))
        )
        return {(row["first"], row["second"]): row for row in rows.iter_rows(named=True)}

    def check(self, found, values):
        for (first, second), row in found.items():
            x, y = values[first].to_numpy(), values[second].to_numpy()
            assert row["n"] == len(x)
            assert row["rho"] == pytest.approx(stats.spearmanr(x, y).statistic)

    def test_encoders_are_means_over_their_observed_data_sets(self, cells):
        means = cells.group_by("encoder").agg(pl.col(CONSTRUCTS).mean())
        self.check(self.pick(cells, "encoder"), means)

    def test_cells_are_compared_raw_and_normalised_within_each_data_set(self, cells):
        self.check(self.pick(cells, "cell"), cells)
        scaled = cells.with_columns(
            (pl.col(n) - pl.col(n).min().over("dataset"))
            / (pl.col(n).max() - pl.col(n).min()).over("dataset")
            for n in CONSTRUCTS
        )
        normalised = self.pick(cells, "cell_normalised")
        self.check(normalised, scaled)
        pair = ("discrimination", "calibration")
        assert normalised[pair]["rho"] < self.pick(cells, "cell")[pair]["rho"]

    def test_each_data_set_stands_alone(self, cells):
        self.check(self.pick(cells, "dataset", "y"), cells.filter(dataset="y"))

    def test_all_pairs_of_constructs_at_every_level_are_there(self, cells):
        table = informativeness(cells)
        assert table.schema == CORRELATIONS
        assert len(table) == 5 * 15

    def test_a_null_leaves_out_its_own_pairs_only(self):
        values = np.array([[1.0, 2, 3], [2, 1, np.nan], [3, 4, 1], [4, 3, 2]])
        table = correlations(values, ("p", "q", "r"), level="cell")
        assert table["n"].to_list() == [4, 3, 3]

    def test_two_few_values_or_a_constant_are_null_with_a_reason(self):
        values = np.array([[1.0, 2, 3], [1, 1, np.nan]])
        table = correlations(values, ("p", "q", "r"), level="cell")
        assert table["rho"].null_count() == 3
        assert table["reason"].to_list() == ["2 values, or all tied"] + 2 * [
            "1 values, or all tied"
        ]
