"""Bootstrap and validity as parts of a run: their tables, their selection, what re-runs them."""

import numpy as np
import polars as pl
import pytest

from crsbench.cli import main

from .conftest import TINY, Project

pytestmark = pytest.mark.workflow

BOOTSTRAP = {"intervals", "axes", "ranks", "differences", "tiers"}
VALIDITY = {
    *("panels", "panel_summary", "insertions", "insertion_summary", "weights", "weight_summary"),
    *("informativeness", "decisions", "reversed_pairs", "rank_moves", "leave_one_dataset_out"),
    *("estimators", "complete_members", "variant_scores", "shift_prediction"),
    "probe_agreement",
}
ALL = "analyses=[bootstrap,case_bootstrap,validity]"


def read(project: Project, path: str) -> pl.DataFrame:
    return pl.read_csv(project.folder / "results" / "tiny" / path)


def names(project: Project, folder: str) -> set[str]:
    return {path.stem for path in (project.folder / "results" / "tiny" / folder).glob("*.csv")}


def test_a_run_has_the_tables_of_its_analyses_and_no_others(tiny):
    assert names(tiny, "bootstrap") == BOOTSTRAP
    assert names(tiny, "validity") == VALIDITY


def test_the_intervals_are_of_the_scores_in_every_scope(tiny):
    scores = read(tiny, "crs_table.csv")
    both = read(tiny, "bootstrap/intervals.csv").join(scores, on=["scope", "encoder"])
    assert set(both["scope"]) == {"aggregate", "tiny_radiograph"}
    assert both["n_undefined"].sum() == 0
    np.testing.assert_allclose(both["point"], both["crs"], atol=1e-12)
    low, high = both["percentile_low"], both["percentile_high"]
    assert (low <= both["mean"] + 1e-12).all()
    assert (both["mean"] <= high + 1e-12).all()


def test_the_ranks_of_every_encoder_have_probabilities_that_sum_to_one(tiny):
    ranks = read(tiny, "bootstrap/ranks.csv")
    sums = ranks.group_by("scope", "resampled", "anchors", "encoder").agg(pl.sum("probability"))
    np.testing.assert_allclose(sums["probability"], 1, atol=1e-12)


def test_only_label_efficiency_varies_with_the_label_subsample(tiny):
    axes = read(tiny, "bootstrap/axes.csv")
    width = axes.group_by("axis").agg(
        (pl.col("percentile_high") - pl.col("percentile_low")).max().alias("width")
    )
    varying = width.filter(pl.col("width") > 1e-9)["axis"].to_list()
    assert varying == ["label_efficiency"]


def test_a_panel_of_two_says_what_it_cannot_say(tiny):
    reasons = read(tiny, "validity/insertions.csv")["reason"].to_list()
    assert reasons == ["3 insertions need 5 encoders; there are 2"]
    assert read(tiny, "validity/panel_summary.csv")["reason"].null_count() == 0


def test_leaving_analyses_out_runs_nothing(tiny):
    assert tiny.ran("-n", *TINY, "--config", "analyses=[]").jobs == {}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("resampling={seed_replicates: 500}", {"bootstrap": 1}),
        ("validity={weight_draws: 10}", {"validity": 1}),
        ("resampling={case_replicates: 50}", {}),
    ],
)
def test_a_setting_re_runs_its_own_analysis(setting, expected, tiny):
    assert tiny.ran("-n", *TINY, "--config", setting).jobs == expected


def test_the_case_bootstrap_is_added_from_stored_predictions_alone(tiny_copy, monkeypatch, capsys):
    added = tiny_copy.ran(*TINY, "--config", ALL)
    assert added.jobs == {"case_replicates": 2, "case_bootstrap": 1}
    assert names(tiny_copy, "bootstrap") - BOOTSTRAP == {
        *(f"case_{name}" for name in BOOTSTRAP),
        "case_absences",
    }
    points = read(tiny_copy, "bootstrap/case_intervals.csv").join(
        read(tiny_copy, "crs_table.csv"), on=["scope", "encoder"]
    )
    np.testing.assert_allclose(points["point"], points["crs"], atol=1e-12)

    monkeypatch.chdir(tiny_copy.folder)
    assert main(["show", *TINY]) == 0
    out = capsys.readouterr().out
    assert "95 % label subsample" in out.splitlines()[0]
    assert "95 % cases and label subsample" in out.splitlines()[0]
    assert "subsample: undefined: a class of tiny_radiograph is absent from" in out


def test_a_run_becomes_a_reference_that_scores_its_own_encoders_alike(
    tiny, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tiny.folder)
    path = tmp_path / "tiny.json"
    assert main(["reference", "freeze", str(path), *TINY]) == 0
    axes = tiny.folder / "results" / "tiny" / "axes.csv"
    assert main(["score", str(axes), "--reference", str(path)]) == 0
    out = capsys.readouterr().out
    for row in read(tiny, "crs_table.csv").filter(pl.col("scope") == "aggregate").to_dicts():
        assert f"{row['label']}" in out
        assert f"{row['crs']:.3f}" in out
