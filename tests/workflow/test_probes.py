"""Further probes run over the same grid, in records of their own, and move no score."""

import polars as pl
import pytest

from crsbench.records import RUN_RECORD, RunKey, read_records

from .conftest import TINY

pytestmark = pytest.mark.workflow

STORE = "results/tiny"
AXES = f"{STORE}/runs/three/axes.csv"
ALL = ("encoders=[tiny_statistics]", "probes=[logistic,mlp,knn]", "run=three")
THREE = (AXES, *TINY, "--config", *ALL)


@pytest.fixture(scope="module")
def three(tiny, tmp_path_factory):
    """A named run of one encoder with all probes, in the store of the tiny run."""
    project = tiny.duplicate(tmp_path_factory.mktemp("probes") / "project")
    assert project.ran(*THREE).jobs == {"probe": 2, "evaluate": 2, "aggregate": 1}
    return project


def records_of(project, name=""):
    folder = project.folder / STORE / name
    return read_records(folder / "run_records.parquet", RUN_RECORD)


def test_every_probe_yields_the_whole_grid(three):
    records = records_of(three, "runs/three")
    assert records.height == 3 * 48
    grids = [
        records.filter(probe=probe).select(RunKey._fields[1:]).rows()
        for probe in ("logistic", "mlp", "knn")
    ]
    assert grids[0] == grids[1] == grids[2]


def test_only_too_few_neighbours_leave_a_record_without_auroc(three):
    lacking = records_of(three, "runs/three").filter(pl.col("macro_auroc").is_null())
    assert set(lacking["probe"]) == {"knn"}
    assert (lacking["n_train"] < 10).all()
    assert lacking["undefined"].list.first().str.starts_with("macro_auroc: no finite value").all()


def test_the_axes_are_those_of_the_primary_probe(tiny, three):
    axes = pl.read_csv(three.folder / AXES)
    before = pl.read_csv(tiny.folder / STORE / "axes.csv")
    assert axes.equals(before.filter(encoder="tiny_statistics"))


def test_the_records_of_the_primary_probe_are_the_same_bit_for_bit(tiny, three):
    before = records_of(tiny).filter(encoder="tiny_statistics")
    assert records_of(three, "runs/three").filter(probe="logistic").equals(before)


def test_each_record_says_how_its_fit_ended_and_has_its_own_settings(three):
    records = records_of(three, "runs/three")
    ends = dict(records.select("probe", "fit_status").unique().iter_rows())
    assert ends == {"logistic": "converged", "mlp": "completed", "knn": "completed"}
    for (probe,), own in records.group_by("probe"):
        settings = own["settings"].unique().to_list()
        assert len(settings) == 1
        assert [name for name in ends if f'"{name}":' in settings[0]] == [probe]


def test_seeds_share_a_fit_at_full_labels_unless_the_seed_matters(three):
    full = records_of(three, "runs/three").filter(label_fraction=1.0)
    n_fits = full.group_by("probe").agg(pl.col("fit_seed").n_unique())
    assert dict(n_fits.iter_rows()) == {"logistic": 1, "mlp": 2, "knn": 1}


def test_a_setting_of_one_probe_runs_that_probe_again_and_no_other(three, tmp_path):
    copy = three.duplicate(tmp_path / "copy")
    copy.edit("config/config.yaml", "epochs: 50 #", "epochs: 51 #")
    planned = copy.ran("-n", *THREE)
    assert planned.jobs == {"probe": 1, "evaluate": 1, "aggregate": 1}
    assert "predictions/mlp" in planned.output
