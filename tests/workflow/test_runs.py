"""The tiny run: complete, repeatable, and resumed after a failure."""

import os
import re
import signal
import time

import polars as pl
import pytest

from crsbench.records import METRIC_ROW, METRICS, RUN_RECORD, read_records

from .conftest import TINY, Project, copy_of_the_project

pytestmark = pytest.mark.workflow

STORE = "results/tiny"


def csv_files(project: Project) -> dict[str, bytes]:
    store = project.folder / STORE
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("[!.]*.csv")}


def records_of(project: Project) -> pl.DataFrame:
    return read_records(project.folder / STORE / "run_records.parquet", RUN_RECORD)


def test_every_planned_record_and_row_is_there(tiny):
    records = records_of(tiny)
    rows = read_records(tiny.folder / STORE / "metric_rows.parquet", METRIC_ROW)
    assert (records.height, rows.height) == (96, 48)
    assert records["macro_auroc"].is_not_null().all()
    assert (records["gradient_norm"] <= 1e-6).all()


def test_the_record_holds_all_that_it_depends_on(tiny):
    records = records_of(tiny)
    digests = [name for name in records.columns if name.endswith("_digest")]
    assert len(digests) == 11
    for name in digests:
        assert (records[name].str.len_chars() == 64).all(), name
    assert (records["input_min"] < records["input_max"]).all()


def test_all_seeds_share_the_fit_on_all_labels(tiny):
    full = records_of(tiny).filter(pl.col("label_fraction") == 1.0)
    assert full["fit_seed"].unique().to_list() == [0]
    per_condition = full.group_by("encoder", "target", "perturbation", "severity")
    assert (per_condition.agg(pl.col("macro_auroc").n_unique())["macro_auroc"] == 1).all()


def test_no_group_is_on_two_sides(tiny):
    folder = tiny.folder / STORE / "data" / "tiny_radiograph"
    index, split = (pl.read_parquet(folder / f"{name}.parquet") for name in ("index", "split"))
    sides = index.join(split, on="sample").group_by("group").agg(pl.col("side").n_unique())
    assert (sides["side"] == 1).all()


def test_the_probe_saw_no_test_image(tiny):
    folder = tiny.folder / STORE / "data" / "tiny_radiograph"
    split = pl.read_parquet(folder / "split.parquet")
    drawn = pl.read_parquet(folder / "subsamples.parquet")["sample"].unique()
    train = split.filter(pl.col("side") == "train")["sample"]
    assert set(drawn) <= set(train)


def test_the_table_carries_reference_datasets_and_cells(tiny):
    table = pl.read_csv(tiny.folder / STORE / "crs_table.csv")
    assert table["scope"].unique(maintain_order=True).to_list() == ["aggregate", "tiny_radiograph"]
    assert (table["reference"] == "cohort").all()
    assert (table["datasets"] == "tiny_radiograph").all()
    assert (table["n_cells"] == 1).all()


def test_every_job_left_a_log_and_its_provenance(tiny):
    store = tiny.folder / STORE
    logs = {path.relative_to(store / "logs").with_suffix("") for path in store.rglob("*.log")}
    files = (store / "provenance").rglob("*.json")
    assert {path.relative_to(store / "provenance").with_suffix("") for path in files} == logs
    assert len(logs) >= 20


def test_a_run_from_scratch_on_one_core_gives_the_same_bytes(tiny, tmp_path):
    again = copy_of_the_project(tmp_path / "again")
    again.ran(*TINY, "--cores", "1")
    assert csv_files(again) == csv_files(tiny)
    numbers = [*METRICS, "gradient_norm"]
    for first, second in zip(
        records_of(tiny).select(numbers), records_of(again).select(numbers), strict=True
    ):
        assert first.to_list() == pytest.approx(second.to_list(), abs=1e-5, nan_ok=True)


def test_a_killed_run_leaves_nothing_half_written_and_is_resumed(tiny, project):
    process = project.start(*TINY)
    features = project.folder / STORE / "features"
    deadline = time.monotonic() + 120
    while not list(features.rglob("*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    # A file that was being written has a hidden name still.
    written = list((project.folder / STORE).rglob("[!.]*.parquet"))
    assert written
    for path in written:
        pl.read_parquet(path)
    project.ran("--unlock", *TINY)
    resumed = project.ran(*TINY)
    assert sum(resumed.jobs.values()) < sum(tiny_jobs(tiny).values())
    assert csv_files(project) == csv_files(tiny)


def tiny_jobs(tiny: Project) -> dict[str, int]:
    return tiny.ran("-n", "--forceall", *TINY).jobs


def test_a_failing_encoder_does_not_stop_the_others_and_its_log_has_the_traceback(tiny_copy):
    tiny_copy.edit(
        "config/encoders.yaml",
        "  architecture: test_resnet\n",
        "  architecture: no_such_architecture\n",
    )
    tiny_copy.edit("config/tiny.yaml", "seeds: [0, 1]", "seeds: [0, 2]")
    finished = tiny_copy.snakemake(*TINY)
    assert finished.status != 0
    log = tiny_copy.folder / STORE / "logs" / "weights" / "tiny_resnet.log"
    assert "Traceback" in log.read_text()
    summary = finished.output.partition("crsbench: 1 job failed:\n")[2].splitlines()
    assert re.match(r"  weights: .*no_such_architecture", summary[0])
    assert summary[1] == f"    log: {log.relative_to(tiny_copy.folder)}"
    records = tiny_copy.folder / STORE / "records" / "logistic" / "tiny_statistics"
    assert 2 in pl.read_parquet(records / "tiny_radiograph.parquet")["seed"]


def test_adding_an_encoder_says_which_cohort_anchors_moved(tiny_copy):
    tiny_copy.edit(
        "config/tiny.yaml",
        "encoders: [tiny_resnet, tiny_statistics]",
        "encoders: [tiny_resnet, tiny_statistics, tiny_vit]",
    )
    tiny_copy.ran(*TINY)
    notes = (tiny_copy.folder / STORE / "crs_notes.md").read_text()
    assert "anchor moved" in notes
    assert "now set by tiny_vit" in notes
