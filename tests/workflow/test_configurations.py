"""The configurations that come with the project: what each runs, and how errors read."""

import re
from pathlib import Path

import pytest
import yaml

from crsbench.config import SEVERITIES, Source, merge_all, read_source
from crsbench.errors import ConfigError, CrsBenchError
from crsbench.plan import Plan, make_plan

from .conftest import ROOT

DEMO = ["phantom_dermoscopy", "phantom_fundus", "phantom_radiograph"]
OFFICIAL = ["isic2019", "aptos2019", "chexpert"]


def plan_of(monkeypatch: pytest.MonkeyPatch, *files: str, **over: object) -> Plan:
    monkeypatch.chdir(ROOT)
    paths = ["config/config.yaml", *files]
    return make_plan(merge_all([*map(read_source, paths), Source("--config", over)]), files=paths)


@pytest.mark.parametrize(
    ("file", "n_encoders", "datasets", "shift", "n_records", "n_rows"),
    [
        (None, 15, OFFICIAL, "mimic_cxr", 17_575, 3_515),
        ("config/demo.yaml", 6, DEMO, "phantom_institution", 7_350, 1_470),
        ("config/mini.yaml", 6, OFFICIAL, "mimic_cxr", 7_350, 1_470),
        ("config/tiny.yaml", 2, ["tiny_radiograph"], "tiny_institution", 96, 48),
    ],
)
def test_an_effective_configuration_has_its_own_selections(
    file, n_encoders, datasets, shift, n_records, n_rows, monkeypatch
):
    plan = plan_of(monkeypatch, *([file] if file else []))
    keys = list(plan.run_keys())
    assert len(plan.encoders) == n_encoders
    assert list(plan.shift) == datasets
    assert plan.shift[datasets[-1]] == [shift]
    assert len(keys) == len(set(keys)) == n_records
    assert len({key._replace(seed=0) for key in keys}) == n_rows


def test_severities_and_strengths_agree(monkeypatch):
    strengths = plan_of(monkeypatch).settings.severities.model_dump()
    assert {len(values) for values in strengths.values()} == {len(SEVERITIES)}


def test_two_datasets_need_nothing_of_the_others(monkeypatch):
    plan = plan_of(monkeypatch, datasets=["isic2019", "aptos2019"], run="two")
    assert set(plan.datasets) == {"isic2019", "aptos2019"}
    assert plan.settings.run_folder == "results/runs/two"
    assert len(plan.cells) == 28


def test_the_two_cells_without_a_released_interface_are_listed(monkeypatch):
    excluded = plan_of(monkeypatch).excluded
    assert {cell[:2] for cell in excluded} == {("biovil", "aptos2019"), ("chexzero", "aptos2019")}


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"run": "q", "seeds": [0]}, r"seeds: run=q shares the files of results .*store=results/q"),
        ({"run": "a/b"}, r"--config: run: String should match pattern"),
        ({"probes": ["logistic", "logistic"]}, r"probes: logistic selected more than once"),
        ({"score": {"reference": "none.json"}}, r"none\.json: no such reference"),
        (
            {"score": {"reference": "resources/references/crs-bench-2608.22059.json"}},
            r"published normalised .* cannot be restricted",
        ),
    ],
)
def test_what_a_plan_refuses(over, message, monkeypatch):
    with pytest.raises(CrsBenchError, match=message):
        plan_of(monkeypatch, **over)


def test_a_run_with_other_seeds_and_a_store_of_its_own_is_planned(monkeypatch):
    plan = plan_of(monkeypatch, run="q", seeds=[0], store="results/q")
    assert len(list(plan.run_keys())) == 17_575 / 5


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("loader", "timmm", r"encoder mine: loader: 'timmm' is unknown; allowed: .*timm"),
        ("skip_datasets", ["aptos"], r"encoder mine: skip_datasets: 'aptos' is not defined"),
    ],
)
def test_a_misspelt_name_in_a_users_card_is_refused(key, value, message, monkeypatch, tmp_path):
    entry = {
        "label": "Mine",
        "loader": "timm",
        "architecture": "vit_small_patch16_224.augreg_in21k",
        "transform": {"resize_px": 224, "interpolation": "bicubic", "normalise": "half"},
    }
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"mine": {**entry, key: value}}))
    files = ["config/encoders.yaml", str(path)]
    with pytest.raises(CrsBenchError, match=message):
        plan_of(monkeypatch, encoder_definitions=files, encoders=["mine"])


@pytest.mark.workflow
@pytest.mark.parametrize(
    "arguments",
    [
        ("-n", "results/crs_table.csv"),
        ("--profile", "slurm", "-n"),
        ("-n", "--config", "datasets=[isic2019,aptos2019]", "run=two"),
        ("-n", "--config", "encoders=[resnet50,biovil]", "run=pair"),
        ("-n", "--configfile", "config/demo.yaml"),
    ],
)
def test_a_dry_run_as_typed_works_in_a_new_clone(arguments, project):
    jobs = project.ran(*arguments).jobs
    assert 0 < sum(jobs.values()) < 2_000
    assert not (project.folder / "results").exists()


@pytest.mark.workflow
def test_a_subset_plans_no_job_for_other_data(project):
    finished = project.ran("-n", "--config", "datasets=[isic2019,aptos2019]", "run=two")
    assert "chexpert" not in finished.output
    assert "mimic" not in finished.output
    assert finished.jobs["features_perturbed"] == 28


@pytest.mark.workflow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--config", "sedes=[0]"), r"--config: sedes: unknown key; allowed: .*seeds"),
        (("--config", "encoders=[resnet51]"), r"encoders: 'resnet51' is not defined .*resnet50"),
        (("--config", "datasets=[mimic_cxr]"), r"mimic_cxr is a shift target of chexpert"),
        (("--config", "shift=[isic2019]"), r"isic2019 is no shift target"),
        (("--config", "seeds=[-1]"), r"--config: seeds\.0: .*greater than or equal to 0, got '?-1"),
    ],
)
def test_a_wrong_configuration_stops_before_anything_runs(arguments, message, project):
    finished = project.snakemake("-n", *arguments)
    assert finished.status != 0
    assert re.search(message, finished.output), finished.output
    assert "Traceback" not in finished.output


@pytest.mark.workflow
def test_missing_data_stop_the_run_with_how_to_get_them(project):
    target = "results/data/chexpert/index.parquet"
    finished = project.snakemake(target)
    assert finished.status != 0
    assert "crsbench: acquire: chexpert: its folder data/chexpert does not" in finished.output
    assert "Copy the personal link shown there into azcopy" in finished.output


def plan_that_skips(data_root: Path) -> Plan:
    skipping = Source("--config", {"missing": "skip", "data_root": str(data_root)})
    merged = merge_all([read_source("config/config.yaml"), skipping])
    return make_plan(merged, files=["config/config.yaml"])


@pytest.mark.workflow
def test_missing_data_may_be_skipped_and_are_listed(monkeypatch, project, tmp_path):
    data = tmp_path / "data" / "aptos2019"
    data.mkdir(parents=True)
    (data / "train.csv").write_text("id_code,diagnosis\n")
    monkeypatch.chdir(project.folder)
    plan = plan_that_skips(tmp_path / "data")
    assert list(plan.shift) == ["aptos2019"]
    assert ("resnet50", "isic2019", "data missing") in plan.excluded
    assert len(plan.cells) == 13


@pytest.mark.workflow
def test_without_any_data_skipping_leaves_nothing_and_says_how_to_get_them(
    monkeypatch, project, tmp_path
):
    monkeypatch.chdir(project.folder)
    message = (
        r"(?s)no cell is left to run: data are missing, and with missing=skip nothing is fetched\n"
        r"isic2019: its folder .*\nchexpert: its folder .*azcopy"
    )
    with pytest.raises(ConfigError, match=message):
        plan_that_skips(tmp_path / "data")


def test_the_conda_environment_has_the_versions_of_the_lock():
    lock = (ROOT / "requirements" / "lock.txt").read_text() + (
        ROOT / "requirements" / "torch.txt"
    ).read_text()
    pinned = dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\\n]+)", lock, re.MULTILINE))
    conda = re.findall(r"- ([a-z0-9-]+)==(\S+)", (ROOT / "envs" / "crsbench.yaml").read_text())
    assert len(conda) > 20
    assert {name: version for name, version in conda if pinned[name] != version} == {}


def test_every_direct_dependency_is_in_the_conda_environment():
    project = (ROOT / "pyproject.toml").read_text().split("dependencies = [")[1].split("]")[0]
    names = set(re.findall(r'"([a-z0-9-]+)[=><]', project))
    conda = Path(ROOT / "envs" / "crsbench.yaml").read_text()
    assert {name for name in names if f"- {name}==" not in conda} == set()
