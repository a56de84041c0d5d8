"""The long checks (``make acceptance``): demo twice and on one core, all of the real images.

Each prints what it measured; the closing note of a change quotes it.
"""

import shutil
import time
from pathlib import Path

import polars as pl
import pytest

from crsbench.config import PERTURBATIONS
from crsbench.records import METRICS

from .conftest import ROOT, Project, copy_of_the_project

pytestmark = pytest.mark.acceptance

MINI = ROOT.parent / "shared" / "mini"
DEMO = ("--configfile", "config/demo.yaml")
MINI_RUN = ("--configfile", "config/mini.yaml", "--config", f"data_root={MINI}")
CONVERGED_PROBE = Path(__file__).with_name("converged_probe.py")
UNTRAINED = ("untrained_vit_tiny", "untrained_resnet")


def timed(project: Project, *arguments: str) -> float:
    started = time.monotonic()
    project.ran(*arguments)
    return time.monotonic() - started


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = copy_of_the_project(tmp_path_factory.mktemp("demo") / "project")
    print(f"\ndemo, all cores: {timed(project, *DEMO):.0f} s")
    return project


def tables(project: Project) -> dict[str, bytes]:
    store = project.folder / "results" / "demo"
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*.csv")}


def read(project: Project, name: str) -> pl.DataFrame:
    path = project.folder / "results" / "demo" / name
    return pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path)


def test_the_demo_is_hard_enough_and_pretraining_pays(demo):
    axes = read(demo, "axes.csv")
    print(axes.pivot("dataset", index="encoder", values="discrimination"))
    for (dataset,), cells in axes.group_by("dataset"):
        auroc = dict(cells.select("encoder", "discrimination").iter_rows())
        assert max(auroc.values()) - min(auroc.values()) >= 0.05, dataset
        pretrained = [value for name, value in auroc.items() if name.startswith("efficientnet")]
        assert min(pretrained) > max(auroc[name] for name in UNTRAINED), dataset
        assert all(0.5 < value < 1 for value in auroc.values()), dataset


def test_severity_3_costs_a_hundredth_of_auroc_on_average(demo):
    rows = read(demo, "metric_rows.parquet").filter(pl.col("label_fraction") == 1.0)
    clean = rows.filter(pl.col("perturbation") == "clean", pl.col("dataset") == pl.col("target"))
    hard = rows.filter(pl.col("severity") == 3)
    drops = hard.join(clean, on=["encoder", "dataset"], suffix="_clean").select(
        "perturbation", drop=pl.col("macro_auroc_clean") - pl.col("macro_auroc")
    )
    print(drops.group_by("perturbation").agg(pl.col("drop").mean()).sort("perturbation"))
    assert set(drops["perturbation"]) == set(PERTURBATIONS)
    assert drops["drop"].mean() >= 0.01


def test_the_demo_again_gives_the_same_bytes(demo, tmp_path):
    again = copy_of_the_project(tmp_path / "again")
    print(f"\ndemo again: {timed(again, *DEMO):.0f} s")
    assert tables(again) == tables(demo)


def test_the_demo_on_one_core_gives_the_same_scores(demo, tmp_path):
    single = copy_of_the_project(tmp_path / "single")
    print(f"\ndemo, one core: {timed(single, *DEMO, '--cores', '1'):.0f} s")
    differences = [
        (read(demo, "run_records.parquet")[name] - read(single, "run_records.parquet")[name]).abs()
        for name in METRICS
    ]
    largest = max(column.max() or 0.0 for column in differences)
    crs = (read(demo, "crs_table.csv")["crs"] - read(single, "crs_table.csv")["crs"]).abs().max()
    print(f"largest difference of a record {largest:.1e}, of CRS {crs:.1e}")
    assert largest <= 1e-5
    assert crs < 5e-4


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Project:
    if not MINI.is_dir():
        pytest.skip("the small real images are not beside the project")
    project = copy_of_the_project(tmp_path_factory.mktemp("mini") / "project")
    print(f"\nmini, all encoders: {timed(project, *MINI_RUN):.0f} s")
    return project


def printed(project: Project, store: str) -> list[str]:
    """Return the table of scores to the digits that it is printed with."""
    table = pl.read_csv(project.folder / "results" / store / "crs_table.csv")
    table = table.drop("reference_digest")  # of unrounded axes
    numbers = pl.selectors.float()
    return table.with_columns(numbers.round(3)).write_csv().splitlines()


def with_converged_probe(finished: Project, folder: Path) -> Project:
    """Copy a finished run whose probe becomes scikit-learn's, run to the last digits."""
    project = finished.duplicate(folder)
    probes = project.folder / "workflow" / "scripts" / "crsbench" / "probes"
    shutil.copy(CONVERGED_PROBE, probes / "logistic.py")
    return project


def test_the_demo_has_the_table_of_a_converged_scikit_learn(demo, tmp_path):
    converged = with_converged_probe(demo, tmp_path / "converged")
    jobs = converged.ran(*DEMO).jobs
    assert "probe" in jobs
    assert "features_clean" not in jobs
    assert printed(converged, "demo") == printed(demo, "demo")


def test_small_real_images_have_the_table_of_a_converged_scikit_learn(mini, tmp_path):
    converged = with_converged_probe(mini, tmp_path / "converged")
    assert "probe" in converged.ran(*MINI_RUN).jobs
    assert printed(converged, "mini") == printed(mini, "mini")


def test_all_encoders_on_small_real_images(mini):
    store = mini.folder / "results" / "mini"
    axes = pl.read_csv(store / "axes.csv")
    print(axes.pivot("dataset", index="encoder", values="discrimination"))
    print(pl.read_csv(store / "crs_table.csv").filter(scope="aggregate").select("label", "crs"))
    lite0 = axes.filter(encoder="efficientnet_lite0_224")
    auroc = dict(lite0.select("dataset", "discrimination").iter_rows())
    assert auroc["isic2019"] == pytest.approx(0.83, abs=0.06)
    assert auroc["aptos2019"] == pytest.approx(0.81, abs=0.06)
    assert axes["shift_drop"].drop_nulls().len() == 6


def test_planning_the_full_benchmark_is_quick(project: Project):
    seconds = timed(project, "-n", "--quiet", "all")
    jobs = project.ran("-n").jobs
    print(f"\nfull benchmark: {sum(jobs.values())} jobs, dry run {seconds:.1f} s: {jobs}")
    assert sum(jobs.values()) < 2_000
