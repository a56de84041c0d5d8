"""What an edit re-runs: that what depends on it, and nothing else."""

import json
import shutil

import polars as pl
import pytest

from .conftest import TINY, copy_of_the_project

pytestmark = pytest.mark.workflow

LIBRARY = "workflow/scripts/crsbench"
SCORES = {"score": 1, "figures": 1, "bootstrap": 1, "validity": 1}
AGGREGATION = {"aggregate": 1} | SCORES
EVALUATION = {"evaluate": 2} | AGGREGATION
PROBES = {"probe": 2} | EVALUATION

#: (file, old text, new text, jobs that run again)
EDITS = {
    "a comment in a metric": (
        f"{LIBRARY}/metrics.py",
        "def brier(",
        "# a remark\ndef brier(",
        {},
    ),
    "a docstring": (
        f"{LIBRARY}/evaluation.py",
        '"""Evaluation: predictions become run records',
        '"""Evaluating: predictions become run records',
        {},
    ),
    "what an error says": (f"{LIBRARY}/records.py", "run records: {len(", "records: {len(", {}),
    "a metric": (
        f"{LIBRARY}/metrics.py",
        "def brier(",
        "BRIER_RANGE = (0, 1)\n\n\ndef brier(",
        EVALUATION,
    ),
    "the probe": (
        f"{LIBRARY}/probes/logistic.py",
        "def fit_logistic(",
        "EDITED = True\n\n\ndef fit_logistic(",
        PROBES,
    ),
    "an axis": (
        f"{LIBRARY}/axes.py",
        "def label_efficiency(",
        "EDITED = True\n\n\ndef label_efficiency(",
        AGGREGATION,
    ),
    "the score": (
        f"{LIBRARY}/crs.py",
        "def worst_axis(",
        "EDITED = True\n\n\ndef worst_axis(",
        SCORES | {"paper_check": 1},
    ),
    "a figure": (
        f"{LIBRARY}/figures.py",
        "def ranks(",
        "EDITED = True\n\n\ndef ranks(",
        {"figures": 1},
    ),
    "one encoder's loader": (
        f"{LIBRARY}/encoders/loaders/statistics.py",
        "def load_source(",
        "EDITED = True\n\n\ndef load_source(",
        {"weights": 1, "features_clean": 2, "features_perturbed": 1, "probe": 1, "evaluate": 1}
        | AGGREGATION,
    ),
    "the tolerance of the probe": (
        "config/config.yaml",
        "tolerance: 1.0e-6",
        "tolerance: 1.0e-7",
        PROBES,
    ),
    "the weights of CRS": (
        "config/config.yaml",
        "{dominance: 0.60, ideal_point: 0.25,",
        "{dominance: 0.50, ideal_point: 0.35,",
        SCORES,
    ),
    "what becomes of uncertain labels": (
        "config/config.yaml",
        "uncertain: mask",
        "uncertain: zeros",
        {"subsample": 1, "prevalence": 1} | PROBES,
    ),
    "a severity": (
        "config/config.yaml",
        "blur: [1, 2, 4]",
        "blur: [1, 2, 5]",
        {"perturb": 1, "features_perturbed": 2} | PROBES,
    ),
    "a perturbation": (
        f"{LIBRARY}/perturbations.py",
        "def perturb(",
        "EDITED = True\n\n\ndef perturb(",
        {"perturb": 1, "features_perturbed": 2} | PROBES,
    ),
    "what people call a dataset": (
        "config/phantoms.yaml",
        "label: Tiny phantom radiographs\n",
        "label: Small phantoms\n",
        {},
    ),
    "how files are fetched": (
        f"{LIBRARY}/acquisition/transfer.py",
        "def download(",
        "EDITED = True\n\n\ndef download(",
        {},
    ),
    "the batch size": ("config/tiny.yaml", "batch_size: 16", "batch_size: 8", {}),
}


def test_a_finished_run_has_nothing_to_do(tiny):
    assert "Nothing to be done" in tiny.ran("-n", *TINY).output


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_reruns_what_depends_on_it(edit, tiny_copy):
    path, old, new, expected = EDITS[edit]
    tiny_copy.edit(path, old, new)
    assert tiny_copy.ran("-n", *TINY).jobs == expected


def test_the_readme_and_a_touched_script_rerun_nothing(tiny_copy):
    (tiny_copy.folder / "README.md").write_text("changed")
    for script in (tiny_copy.folder / "workflow" / "scripts").glob("*.py"):
        script.touch()
    assert tiny_copy.ran("-n", *TINY).jobs == {}


def test_a_new_clone_with_restored_results_reruns_nothing(tiny, tmp_path):
    clone = copy_of_the_project(tmp_path / "clone")
    for name in ("results", ".snakemake"):
        shutil.copytree(tiny.folder / name, clone.folder / name)
    assert clone.ran("-n", *TINY).jobs == {}


def test_a_new_encoder_runs_its_own_jobs_and_the_aggregation_only(tiny_copy):
    tiny_copy.edit(
        "config/tiny.yaml",
        "encoders: [tiny_resnet, tiny_statistics]",
        "encoders: [tiny_resnet, tiny_statistics, tiny_vit]",
    )
    planned = tiny_copy.ran("-n", *TINY).jobs
    own = {"weights": 1, "features_clean": 2, "features_perturbed": 1, "probe": 1, "evaluate": 1}
    assert planned == own | AGGREGATION


def test_accepted_code_reruns_nothing_until_it_changes_again(tiny_copy):
    tiny_copy.edit(*EDITS["a metric"][:3])  # re-runs EVALUATION, as seen above
    accepted = tiny_copy.crsbench("accept", "evaluate", *TINY)
    assert accepted.returncode == 0, accepted.stderr
    assert accepted.stdout.startswith("evaluate: 2 finished jobs count as made by today's code\n")
    assert tiny_copy.ran("-n", *TINY).jobs == {}
    tiny_copy.edit(f"{LIBRARY}/metrics.py", "BRIER_RANGE = (0, 1)", "BRIER_RANGE = (0, 2)")
    assert tiny_copy.ran("-n", *TINY).jobs == EVALUATION


def test_a_job_made_by_accepted_code_names_that_code(tiny_copy):
    cell = "logistic/tiny_statistics/tiny_radiograph"
    records, about = (
        tiny_copy.folder / "results" / "tiny" / f"{kind}/{cell}.{suffix}"
        for kind, suffix in (("records", "parquet"), ("provenance/records", "json"))
    )
    before, recorded = json.loads(about.read_text()), pl.read_parquet(records)
    tiny_copy.edit(*EDITS["a metric"][:3])
    assert tiny_copy.crsbench("accept", "evaluate", *TINY).returncode == 0
    assert json.loads(about.read_text()) == before
    records.unlink()
    tiny_copy.ran(str(records.relative_to(tiny_copy.folder)), *TINY)
    after = json.loads(about.read_text())
    assert after["params"] == before["params"]
    assert after["code_digest"] != before["code_digest"] == before["params"]["code"]["digest"]
    made_again = pl.read_parquet(records)
    assert set(made_again["code_digest"]).isdisjoint(recorded["code_digest"])
    assert made_again.drop("code_digest").equals(recorded.drop("code_digest"))
