"""The table in the terminal: scores, intervals where there are any, and what they are not of."""

import numpy as np
import polars as pl
import pytest
from panel_oracle import DATASETS, ENCODERS, WEIGHTS, run_records

from crsbench.aggregation import average_over_seeds
from crsbench.axes import axes_table
from crsbench.bootstrap_tables import bootstrap_tables, seed_bootstraps
from crsbench.crs_table import crs_table
from crsbench.errors import DataError
from crsbench.files import write_csv, write_text
from crsbench.reference import Member, cohort_reference
from crsbench.seed_records import collect_seed_records
from crsbench.summary import candidate_lines, table_lines


@pytest.fixture
def scores():
    cells = axes_table(
        average_over_seeds(run_records()), probe="logistic", robustness_fractions=(1.0,)
    )
    members = [Member(name, name.upper(), "") for name in ENCODERS]
    reference = cohort_reference(cells, encoders=members, weights=WEIGHTS)
    return crs_table(cells, encoders=members, reference=reference)


@pytest.fixture
def folder(tmp_path, scores):
    write_csv(scores, tmp_path / "crs_table.csv")
    write_text("# Notes\n", tmp_path / "crs_notes.md")
    return tmp_path


@pytest.fixture(scope="module")
def bootstrap():
    records = collect_seed_records(
        run_records(), probe="logistic", encoders=ENCODERS, datasets=DATASETS
    )
    return bootstrap_tables(
        seed_bootstraps(records, draws=["exact"], n_replicates=1, seed=0, weights=WEIGHTS)
    )


def write_bootstrap(tables, folder, prefix=""):
    for name in ("intervals", "ranks"):
        write_csv(tables[name], folder / "bootstrap" / f"{prefix}{name}.csv")


def header_and_rows(folder):
    lines = table_lines(folder)
    return lines[0], lines[1 : 1 + len(ENCODERS)], lines


def test_without_a_bootstrap_the_table_has_no_interval(folder):
    header, rows, lines = header_and_rows(folder)
    assert "95 %" not in header
    assert "P(1st)" not in header
    assert [row.split()[1] for row in rows] == [name.upper() for name in _ranked(folder)]
    assert "# Notes" in lines


def test_what_was_made_is_listed_and_what_was_being_written_is_not(folder):
    (folder / "figures").mkdir()
    made = [folder / "run_records.parquet", folder / "figures" / "ranks.png"]
    begun = [folder / ".metric_rows.parquet.a1.parquet", folder / "figures" / ".ranks.png.a1.png"]
    for path in (*made, *begun):
        path.touch()
    lines = table_lines(folder)
    assert [str(path) in lines for path in (*made, *begun)] == [True, True, False, False]


def _ranked(folder):
    table = pl.read_csv(folder / "crs_table.csv").filter(pl.col("scope") == "aggregate")
    return table.sort("rank")["encoder"].to_list()


def test_the_interval_and_the_chance_of_the_first_rank_stand_beside_the_score(folder, bootstrap):
    write_bootstrap(bootstrap, folder)
    header, rows, lines = header_and_rows(folder)
    assert "95 % label subsample" in header
    assert "95 % cases and label subsample" not in header
    chances = [float(row.split()[-1]) for row in rows]
    np.testing.assert_allclose(sum(chances), 1, atol=0.003)
    expected = bootstrap["intervals"].filter(
        (pl.col("scope") == "aggregate") & (pl.col("anchors") == "recomputed")
    )
    bounds = {
        name.upper(): f"[{low:.3f}, {high:.3f}]"
        for name, low, high in expected.select(
            "encoder", "percentile_low", "percentile_high"
        ).iter_rows()
    }
    assert all(bounds[row.split()[1]] in row for row in rows)
    assert str(folder / "bootstrap") in lines


def test_both_intervals_stand_in_the_table_by_name(folder, bootstrap):
    write_bootstrap(bootstrap, folder)
    write_bootstrap(bootstrap, folder, "case_")
    header, _, _ = header_and_rows(folder)
    both = "95 % cases and label subsample"
    assert header.index("95 % label subsample") < header.index(both)
    assert header.count("P(1st)") == 2


def test_of_the_case_bootstrap_cases_and_seeds_drawn_together_are_shown(folder, bootstrap):
    crossed = {
        name: pl.concat([table, table.with_columns(resampled=pl.lit("crossed"))])
        for name, table in bootstrap.items()
        if name in ("intervals", "ranks")
    }
    moved = pl.when(pl.col("resampled") == "crossed").then(0.987).otherwise("percentile_high")
    shown = crossed["intervals"].with_columns(percentile_high=moved)
    write_bootstrap(crossed | {"intervals": shown}, folder, "case_")
    _, rows, _ = header_and_rows(folder)
    assert all(", 0.987]" in row for row in rows)


def test_replicates_without_a_score_are_counted(folder, bootstrap):
    start = "95 % cases and label subsample: up to"
    for n_undefined in (0, 202):
        counts = {"n_replicates": 2_000, "n_undefined": n_undefined}
        counted = bootstrap["intervals"].with_columns(**counts)
        write_bootstrap(bootstrap | {"intervals": counted}, folder, "case_")
        remarks = [line for line in table_lines(folder) if line.startswith(start)]
        assert len(remarks) == (n_undefined > 0)
    assert remarks[0].startswith(f"{start} 202 of 2,000 replicates have no score")


def test_an_undefined_interval_says_why(folder, bootstrap):
    hidden = ("percentile_low", "percentile_high")
    undefined = bootstrap["intervals"].with_columns(
        *(pl.lit(None, pl.Float64).alias(name) for name in hidden),
        reason=pl.lit("a class is absent"),
    )
    write_bootstrap(bootstrap | {"intervals": undefined}, folder, "case_")
    _, _, lines = header_and_rows(folder)
    assert "95 % cases and label subsample: undefined: a class is absent" in lines
    assert "[" not in "".join(lines[: 1 + len(ENCODERS)])


def test_intervals_of_other_scores_are_left_out_and_named(folder, bootstrap):
    moved = bootstrap["intervals"].with_columns(pl.col("point") + 1e-6)
    write_bootstrap(bootstrap | {"intervals": moved}, folder)
    header, _, lines = header_and_rows(folder)
    assert "95 %" not in header
    path = folder / "bootstrap" / "intervals.csv"
    assert f"{path}: of other scores than this table's; left out" in lines


def test_a_run_without_scores_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"crs_table\.csv: no table of scores yet; run snakemake"):
        table_lines(tmp_path)


def test_candidates_are_named_with_their_reference_and_the_anchors_they_reach(scores):
    lines = candidate_lines(scores.filter(pl.col("scope") == "aggregate"), ["oak", "elm"])
    digest = scores["reference_digest"][0][:12]
    summary = lines[len(ENCODERS) + 2]
    assert summary.startswith(f"reference cohort {digest}; candidates: ")
    assert {"oak", "elm"} == set(summary.split("candidates: ")[1].split(", "))
