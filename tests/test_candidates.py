"""Candidates: units, columns, numbers, and the members' scores that do not move."""

import numpy as np
import polars as pl
import pytest
from panel_oracle import WEIGHTS

from crsbench.candidates import read_candidates as read
from crsbench.candidates import score_candidates
from crsbench.crs import AXES
from crsbench.crs_table import crs_table, member_axes
from crsbench.errors import CrsBenchError
from crsbench.reference import Member, cohort_reference
from crsbench.reference_files import load_reference

HEADER = "encoder,dataset," + ",".join(AXES)
NORMALISED_HEADER = "encoder," + ",".join(AXES)
ENCODERS = tuple(Member(name, name.upper(), "group") for name in "abcdef")


@pytest.fixture
def raw():
    random = np.random.default_rng(0)
    rows = [
        (member.encoder, dataset, *random.uniform(0.5, 1, 4))
        for member in ENCODERS
        for dataset in ("skin", "eye")
    ]
    axes = pl.DataFrame(rows, schema=["encoder", "dataset", *AXES], orient="row")
    return cohort_reference(axes, encoders=ENCODERS, weights=WEIGHTS)


@pytest.fixture
def published(request):
    folder = request.config.rootpath / "resources" / "references"
    return load_reference(folder / "crs-bench-2608.22059.json")


@pytest.fixture
def csv(tmp_path):
    def write(*lines):
        path = tmp_path / "axes.csv"
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


def read_candidates(path, reference):
    return read(path, reference, supplements=["aulc", "reason"])


class TestScores:
    def test_candidate_leaves_the_members_scores_to_the_last_bit(self, raw, csv):
        path = csv(HEADER, "new,skin,0.9,0.8,1.02,0.7", "new,eye,0.6,0.9,0.9,0.9")
        table = score_candidates(read_candidates(path, raw), reference=raw)
        alone = crs_table(member_axes(raw), encoders=ENCODERS, reference=raw)
        alone = alone.filter(pl.col("scope") == "aggregate")
        members = table.filter(pl.col("encoder") != "new")
        assert members.drop("rank", "auroc_rank").equals(alone.drop("rank", "auroc_rank"))
        assert table["rank"].to_list() == [1, 2, 3, 4, 5, 6, 7]

    def test_candidate_that_equals_a_member_dominates_no_more_than_it(self, raw):
        twin = member_axes(raw).filter(pl.col("encoder") == "c").with_columns(encoder=pl.lit("t"))
        table = score_candidates(twin, reference=raw)
        rows = {row["encoder"]: row for row in table.iter_rows(named=True)}
        assert rows["t"]["ideal_point"] == rows["c"]["ideal_point"]
        assert rows["t"]["dominance"] * 6 == pytest.approx(rows["c"]["dominance"] * 5)

    def test_member_brought_again_is_compared_with_the_other_members(self, raw):
        again = member_axes(raw).filter(pl.col("encoder") == "c")
        unchanged = score_candidates(again, reference=raw).sort("encoder")
        alone = crs_table(member_axes(raw), encoders=ENCODERS, reference=raw)
        expected = alone.filter(pl.col("scope") == "aggregate").sort("encoder")
        assert unchanged["crs"].equals(expected["crs"])

    def test_fewer_datasets_restrict_the_reference_for_all(self, raw, csv):
        path = csv(HEADER, "new,eye,0.9,0.8,0.9,0.7")
        table = score_candidates(read_candidates(path, raw), reference=raw)
        assert table["reference"].unique().to_list() == ["cohort[eye]"]
        assert table["rank"].null_count() == 0

    def test_published_panel_scores_candidates_in_its_units(self, published, csv):
        path = csv(NORMALISED_HEADER, "perfect,1,1,1,1", "worst,0,0,0,0")
        table = score_candidates(read_candidates(path, published), reference=published)
        crs = dict(table.select("encoder", "crs").iter_rows())
        assert (crs["perfect"], crs["worst"]) == (1.0, 0.0)
        assert crs["PanDerm"] == pytest.approx(0.703, abs=0.0015)
        assert table["auroc"].null_count() == table.height


class TestErrors:
    def test_raw_axes_for_the_published_panel(self, published, csv):
        path = csv(HEADER, "new,skin,0.9,0.8,0.9,0.7")
        with pytest.raises(CrsBenchError, match=r"column dataset, so raw axes; .*normalised units"):
            read_candidates(path, published)

    def test_normalised_axes_for_a_raw_reference(self, raw, csv):
        path = csv(NORMALISED_HEADER, "new,0.9,0.8,0.9,0.7")
        with pytest.raises(CrsBenchError, match=r"in raw units and needs .* \(skin, eye\)"):
            read_candidates(path, raw)

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ("new,skin,90.1,0.8,0.9,0.7", r"line 2, discrimination: got '90\.1', expected raw"),
            ("new,skin,0.9,0.8,2.5,0.7", "line 2, label_efficiency: .* from 0 to 2"),
            ("new,skin,0.9,,0.9,0.7", "line 2, calibration: got None"),
            ("new,skin,0.9,nan,0.9,0.7", "line 2, calibration: got 'nan'"),
            ("new,skin,0.9,high,0.9,0.7", "line 2, calibration: got 'high'"),
            (",skin,0.9,0.9,0.9,0.7", "line 2: encoder or dataset is empty"),
        ],
    )
    def test_value_that_is_no_axis(self, raw, csv, row, message):
        with pytest.raises(CrsBenchError, match=message):
            read_candidates(csv(HEADER, row), raw)

    @pytest.mark.parametrize("extra", ["fairness", "Robustness", "aulc_log"])
    def test_unknown_axis_is_refused_and_not_left_out(self, raw, csv, extra):
        path = csv(f"{HEADER},{extra}", "new,skin,0.9,0.8,0.9,0.7,0.5")
        message = f"axes.csv: unknown axis '{extra}'; axes are discrimination, .*: aulc, reason$"
        with pytest.raises(CrsBenchError, match=message):
            read_candidates(path, raw)

    def test_supplements_of_a_run_are_left_out(self, raw, csv):
        row = "new,skin,0.9,0.8,0.9,0.7"
        plain = read_candidates(csv(HEADER, row), raw)
        wide = read_candidates(csv(f"{HEADER},reason,aulc", f"{row},,0.8"), raw)
        assert wide.equals(plain)

    def test_missing_column(self, raw, csv):
        with pytest.raises(CrsBenchError, match="column robustness missing; needed: encoder"):
            read_candidates(csv(HEADER.removesuffix(",robustness"), "new,skin,1,1,1"), raw)

    def test_missing_file(self, raw, tmp_path):
        with pytest.raises(CrsBenchError, match="no such file of axes"):
            read_candidates(tmp_path / "none.csv", raw)

    def test_empty_file(self, raw, csv):
        path = csv()
        path.write_text("")
        with pytest.raises(CrsBenchError, match="not a CSV table"):
            read_candidates(path, raw)

    def test_dataset_that_the_reference_lacks(self, raw, csv):
        candidates = read_candidates(csv(HEADER, "new,lung,0.9,0.8,0.9,0.7"), raw)
        with pytest.raises(CrsBenchError, match="no dataset lung; it has skin, eye"):
            score_candidates(candidates, reference=raw)

    def test_candidate_named_twice_on_a_dataset(self, raw, csv):
        row = "new,skin,0.9,0.8,0.9,0.7"
        with pytest.raises(CrsBenchError, match="encoder new stands twice on skin"):
            score_candidates(read_candidates(csv(HEADER, row, row), raw), reference=raw)
