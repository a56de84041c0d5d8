"""Accepting code: what is written, for which jobs, and what cannot be accepted."""

import json
from pathlib import Path

import pytest

from crsbench.accepted_code import accept_code
from crsbench.config import merge_all, read_source
from crsbench.errors import DataError
from crsbench.plan import make_plan
from crsbench.provenance import SCRIPTS, Accepted, code_digest, read_accepted, write_accepted

ROOT = Path(__file__).parents[1]
FILES = ["config/config.yaml", "config/tiny.yaml"]
OLD, OLDER = "a" * 64, "b" * 64
EVALUATE = code_digest(SCRIPTS / "evaluate_probe.py")
LOADERS = {"tiny_resnet": "encoders.loaders.timm", "tiny_statistics": "encoders.loaders.statistics"}
CLEAN = {
    encoder: code_digest(SCRIPTS / "extract_clean.py", [loader])
    for encoder, loader in LOADERS.items()
}


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The empty store of a tiny run."""
    monkeypatch.chdir(ROOT)
    return Store(tmp_path)


class Store:
    """A store that is filled with finished jobs."""

    def __init__(self, folder):
        self.folder = folder

    def accept(self, *stages, reason="", **settings):
        merged = merge_all(map(read_source, FILES)) | settings | {"store": str(self.folder)}
        return accept_code(make_plan(merged, files=FILES), stages, reason=reason)

    def job(self, stage, name, digest, *, script, modules=(), run="", **wildcards):
        output = self.folder / run / f"{name}.parquet"
        output.parent.mkdir(parents=True, exist_ok=True)
        output.touch()
        about = {
            "rule": stage,
            "wildcards": wildcards,
            "params": {"code": {"script": script, "modules": list(modules), "digest": digest}},
            "outputs": [str(output)],
        }
        path = self.folder / run / "provenance" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(about))
        return output

    def evaluated(self, encoder, digest):
        cell = {"probe": "logistic", "encoder": encoder, "dataset": "tiny_radiograph"}
        return self.job("evaluate", encoder, digest, script="evaluate_probe.py", **cell)

    def extracted(self, encoder, digest):
        of = {"script": "extract_clean.py", "modules": [LOADERS[encoder]]}
        cell = {"encoder": encoder, "dataset": "tiny_radiograph"}
        return self.job("features_clean", f"{encoder}_clean", digest, **of, **cell)

    @property
    def accepted(self):
        return {
            stage: {today: entry.stands_for for today, entry in entries.items()}
            for stage, entries in read_accepted(self.folder).items()
        }


def test_todays_code_stands_for_the_code_that_made_the_jobs(store):
    for encoder in LOADERS:
        store.evaluated(encoder, OLD)
    lines = store.accept("evaluate", reason="renamed a variable")
    assert read_accepted(store.folder) == {
        "evaluate": {EVALUATE: Accepted(stands_for=OLD, reason="renamed a variable")}
    }
    assert lines[0] == "evaluate: 2 finished jobs count as made by today's code"
    assert "accepted_code.json: written; records keep the digest of the code" in lines[1]


def test_each_loader_has_code_of_its_own_and_what_did_not_change_needs_no_acceptance(store):
    store.extracted("tiny_resnet", OLD)
    store.extracted("tiny_statistics", CLEAN["tiny_statistics"])
    lines = store.accept("features_clean")
    assert lines[0].endswith("1 finished jobs count as made by today's code, 1 more were")
    assert store.accepted == {"features_clean": {CLEAN["tiny_resnet"]: OLD}}


def test_code_that_did_not_change_is_not_written(store):
    store.evaluated("tiny_resnet", EVALUATE)
    expected = ["evaluate: all 1 finished jobs were made by today's code"]
    assert store.accept("evaluate") == expected
    assert store.accepted == {}


def test_accepting_again_changes_nothing_and_keeps_the_reason(store):
    store.evaluated("tiny_resnet", OLD)
    store.accept("evaluate", reason="renamed")
    before = (store.folder / "accepted_code.json").read_bytes()
    assert len(store.accept("evaluate")) == 1
    assert (store.folder / "accepted_code.json").read_bytes() == before


def test_several_stages_are_accepted_together_and_what_was_accepted_before_stays(store):
    write_accepted({"evaluate": {"c": Accepted(stands_for=OLD)}}, store.folder)
    store.evaluated("tiny_resnet", OLD)
    store.extracted("tiny_resnet", OLDER)
    store.accept("evaluate", "features_clean")
    assert store.accepted == {
        "evaluate": {"c": OLD, EVALUATE: OLD},
        "features_clean": {CLEAN["tiny_resnet"]: OLDER},
    }


@pytest.mark.parametrize("second", [OLDER, EVALUATE])
def test_code_cannot_stand_for_two_and_nothing_is_written(store, second):
    store.evaluated("tiny_resnet", OLD)
    other = store.evaluated("tiny_statistics", second)
    store.extracted("tiny_resnet", OLD)
    shown = "bbbbbbbbbbbb" if second == OLDER else "of today"
    with pytest.raises(DataError, match=rf"evaluate: jobs .* different code.*{shown}: .*\.json"):
        store.accept("features_clean", "evaluate")
    assert store.accepted == {}
    other.unlink()  # it may be made again: its job is not finished any more
    store.accept("evaluate")
    assert store.accepted == {"evaluate": {EVALUATE: OLD}}


def test_code_that_is_accepted_for_other_jobs_cannot_stand_for_these(store):
    write_accepted({"evaluate": {EVALUATE: Accepted(stands_for=OLDER)}}, store.folder)
    store.evaluated("tiny_resnet", OLD)
    with pytest.raises(DataError, match=r"bbbbbbbbbbbb: \S*accepted_code\.json"):
        store.accept("evaluate")


def test_only_jobs_of_the_run_count(store):
    store.evaluated("tiny_resnet", OLD)
    store.evaluated("tiny_vit", OLDER)  # of an encoder that is not selected
    aggregate = {"script": "aggregate_records.py"}
    store.job("aggregate", "aggregate", OLDER, **aggregate)
    store.job("aggregate", "aggregate", OLD, run="runs/two", **aggregate)
    store.accept("evaluate", "aggregate", run="two")
    assert {*store.accepted["evaluate"].values(), *store.accepted["aggregate"].values()} == {OLD}


def test_a_stage_without_finished_jobs_says_which_have_some(store):
    with pytest.raises(DataError, match=r"no finished job .*; nor of any other; run it first"):
        store.accept("evaluate")
    store.evaluated("tiny_resnet", OLD)
    store.extracted("tiny_resnet", OLD)
    with pytest.raises(DataError, match=r"accept score: .*; it has some of evaluate, features_c"):
        store.accept("evaluate", "score")
    assert store.accepted == {}


def test_a_script_that_is_gone_cannot_be_accepted(store):
    store.job("score", "score", OLD, script="gone.py")
    with pytest.raises(DataError, match=r"accept score: \S*gone\.py is gone, which made \S*score"):
        store.accept("score")


@pytest.mark.parametrize(("text", "message"), [("{", "Invalid JSON"), ("{}", "rule: no proven")])
def test_a_damaged_provenance_is_named(store, text, message):
    store.evaluated("tiny_resnet", OLD)
    (store.folder / "provenance" / "tiny_resnet.json").write_text(text)
    with pytest.raises(DataError, match=rf"tiny_resnet\.json: .*{message}"):
        store.accept("evaluate")


def test_a_provenance_that_a_killed_job_was_writing_is_none(store):
    store.evaluated("tiny_resnet", OLD)
    (store.folder / "provenance" / ".tiny_statistics.json.a1b2.json").touch()
    assert store.accept("evaluate")[0].startswith("evaluate: 1 finished jobs count as made by")
