"""The paper check: all statements pass, the documented tie, and that a wrong number fails."""

import re
import shutil
from itertools import combinations

import numpy as np
import polars as pl
import pytest
from scipy.stats import kendalltau, spearmanr

from crsbench.crs import AXES, score_cohort
from crsbench.crs_table import member_axes, near_ties
from crsbench.errors import CrsBenchError
from crsbench.paper_check import (
    NEEDS_DATA,
    PAPER_CHECK,
    PAPER_WEIGHTS,
    paper_check,
    published_reference,
    read_published,
    render_paper_check,
)
from crsbench.reference_files import load_reference


@pytest.fixture(scope="module")
def folder(pytestconfig):
    return pytestconfig.rootpath / "resources" / "paper"


@pytest.fixture(scope="module")
def published(folder):
    return read_published(folder)


@pytest.fixture(scope="module")
def table(folder):
    return paper_check(folder)


def rows_about(table, text):
    return table.filter(pl.col("statement").str.contains(text, literal=True))


class TestAllStatements:
    def test_all_pass(self, table):
        assert table.filter(pl.col("verdict") != "pass").rows() == []
        assert table.schema == PAPER_CHECK

    def test_verdict_follows_from_difference_and_tolerance(self, table):
        difference = (table["recomputed"] - table["published"]).to_numpy()
        np.testing.assert_array_equal(table["difference"], difference)
        assert (np.abs(difference) <= table["tolerance"].to_numpy() + 1e-12).all()

    def test_statements_about_each_encoder_have_a_row_each(self, table):
        for text, n_rows in (
            ("Table 2: CRS of", 15),
            ("Table 2: aggregate AUROC of", 15),
            ("Figure 4: other-domain CRS of", 15),
            ("Figure 4: matched less other AUROC of", 5),
        ):
            assert rows_about(table, text).height == n_rows
        assert table["statement"].is_unique().all()

    def test_same_folder_gives_the_same_table(self, table, folder):
        assert paper_check(folder).equals(table)


class TestOracles:
    def test_correlations_agree_with_scipy(self, table, published):
        tau = kendalltau(published.auroc, published.crs).statistic
        rho = spearmanr(published.auroc, published.crs).statistic
        found = table["recomputed"]
        assert found[
            table["statement"].index_of("Section 5.4: Kendall's tau of AUROC and CRS")
        ] == (pytest.approx(tau))
        assert rows_about(table, "Spearman's rho of AUROC")["recomputed"][0] == pytest.approx(rho)

    def test_leave_one_out_panels_agree_with_loops(self, table, published):
        taus = []
        for members in combinations(range(15), 14):
            subset = score_cohort(published.axes[list(members)], weights=PAPER_WEIGHTS).crs
            taus.append(kendalltau(subset, published.crs[list(members)]).statistic)
        found = rows_about(table, "tau, 15 panels of 14")["recomputed"][0]
        assert found == pytest.approx(np.mean(taus), rel=1e-12)

    def test_biomedclip_with_the_tie_left_standing(self, published):
        standing = published.axes_table.select(AXES).to_numpy()
        crs = score_cohort(standing, weights=PAPER_WEIGHTS).crs[
            published.encoders.index("BiomedCLIP")
        ]
        assert crs == pytest.approx(0.467, abs=0.0005)

    def test_broken_tie_is_a_listed_near_tie(self, published):
        reference = published_reference(published)
        axes = member_axes(reference)
        ties = near_ties(axes, encoders=reference.panel, reference=reference)
        found = ties.filter(pl.col("other") == "SigLIP").row(0, named=True)
        assert (found["encoder"], found["axis"]) == ("BiomedCLIP", "label_efficiency")
        assert found["crs_change"] == pytest.approx(0.467 - 0.424, abs=0.0005)


class TestWrongNumbers:
    @pytest.fixture
    def altered(self, folder, tmp_path):
        def alter(name, encoder, column, value):
            shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
            path = tmp_path / f"{name}.csv"
            rows = pl.read_csv(path)
            is_row = pl.col("encoder") == encoder
            rows.with_columns(
                pl.when(is_row).then(value).otherwise(pl.col(column)).alias(column)
            ).write_csv(path)
            return tmp_path

        return alter

    @pytest.mark.parametrize(
        ("change", "failing"),
        [
            (("table2", "MAE", "aggregate_crs", 0.189), "Table 2: CRS of MAE"),
            (("table2", "MAE", "aggregate_auroc", 0.829), "Table 2: aggregate AUROC of MAE"),
            (("fig4_specialization", "MAE", "other_domain_crs", 0.2), "CRS of MAE"),
            (("fig7_ece_increase", "MAE", "CheXpert", 0.039), "on CheXpert"),
            (("fig7_ece_increase", "MAE", "CheXpert", None), "Figure 7a: cells"),
        ],
    )
    def test_altered_number_fails_its_own_statement_only(self, altered, change, failing):
        failed = paper_check(altered(*change)).filter(pl.col("verdict") == "fail")
        assert failed.height == 1
        assert failing in failed["statement"][0]

    def test_altered_axis_fails_the_score(self, altered):
        failed = paper_check(altered("fig2_axes", "PanDerm", "robustness", 0.5))
        failed = failed.filter(pl.col("verdict") == "fail")
        assert "Table 2: CRS of PanDerm from its four axes" in failed["statement"]

    def test_missing_file(self, tmp_path):
        with pytest.raises(CrsBenchError, match=r"fig2_axes\.csv: missing; it ships"):
            read_published(tmp_path)

    def test_other_encoders_in_one_table(self, folder, tmp_path):
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        path = tmp_path / "fig2_axes.csv"
        pl.read_csv(path).reverse().write_csv(path)
        with pytest.raises(CrsBenchError, match="differ in their encoders"):
            read_published(tmp_path)


class TestPage:
    def test_page_has_a_row_per_statement_and_the_list_below(self, table):
        page = render_paper_check(table)
        statements, below = page.split("## Needs data")
        assert len(re.findall(r"\| pass \|", statements)) == table.height
        assert below.count("\n- ") == len(NEEDS_DATA)
        assert f"{table.height} pass, 0 fail" in page
        assert "0.467 instead of 0.424" in page

    def test_failures_are_counted(self, table):
        failing = table.with_columns(verdict=pl.lit("fail")).head(3)
        assert "0 pass, 3 fail" in render_paper_check(failing)


def test_shipped_reference_is_the_published_panel(published, pytestconfig):
    path = pytestconfig.rootpath / "resources" / "references" / "crs-bench-2608.22059.json"
    assert load_reference(path).digest == published_reference(published).digest


def test_published_reference_cannot_be_restricted(published):
    with pytest.raises(CrsBenchError, match="published normalised and aggregated only"):
        published_reference(published).restrict(["isic"])
