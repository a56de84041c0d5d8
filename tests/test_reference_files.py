"""Files of references: what is frozen comes back to the last bit, what was altered is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from panel_oracle import WEIGHTS
from small_cohort import ENCODERS, axes_frame, cohort

from crsbench.errors import CrsBenchError
from crsbench.reference_files import freeze_reference, load_reference


def test_frozen_reference_loads_with_all_bits(tmp_path):
    reference = cohort(name="first", run="run 1")
    freeze_reference(reference, tmp_path / "r.json")
    loaded = load_reference(tmp_path / "r.json", weights=WEIGHTS)
    assert loaded.digest == reference.digest
    assert (loaded.name, loaded.run, loaded.panel) == ("first", "run 1", ENCODERS)
    for name, scope in reference.scopes.items():
        again = loaded.scopes[name]
        assert again.members == scope.members
        np.testing.assert_array_equal(again.axes, scope.axes)
        np.testing.assert_array_equal(again.anchors.upper, scope.anchors.upper)


def test_freezing_never_overwrites(tmp_path):
    path = tmp_path / "r.json"
    path.write_text("mine")
    with pytest.raises(CrsBenchError, match="exists; a reference is never overwritten"):
        freeze_reference(cohort(), path)
    assert path.read_text() == "mine"


def test_undefined_scope_cannot_be_frozen(tmp_path):
    without = [(name, "eye") for name in "bcdef"]
    with pytest.raises(CrsBenchError, match="cohort, eye: a panel needs two encoders"):
        freeze_reference(cohort(axes_frame(without=without)), tmp_path / "r.json")
    assert not (tmp_path / "r.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["axes"][0].update(robustness=0.99), "does not match"),
        (lambda c: c["anchors"]["eye"]["upper"].update(robustness=2.0), "does not match"),
        (lambda c: c.update(name="better"), "does not match"),
        (lambda c: c["axes"].append(c["axes"][0]), "stands twice on skin"),
        (lambda c: c.update(format=99), "format 99; this version reads 1"),
        (lambda c: c.pop("anchors"), "not a reference; its keys must be format, name"),
        (lambda c: c["anchors"].pop("eye"), "not a reference: KeyError"),
    ],
)
def test_altered_file(tmp_path, change, message):
    path = tmp_path / "r.json"
    freeze_reference(cohort(), path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(CrsBenchError, match=message):
        load_reference(path)


def test_missing_file(tmp_path):
    with pytest.raises(CrsBenchError, match="no such reference; `crsbench reference freeze`"):
        load_reference(tmp_path / "none.json")


def test_file_that_is_no_json(tmp_path):
    (tmp_path / "r.json").write_text("{")
    with pytest.raises(CrsBenchError, match=r"r\.json: not JSON"):
        load_reference(tmp_path / "r.json")


def test_weights_of_the_run_must_be_those_of_the_reference(tmp_path):
    freeze_reference(cohort(), tmp_path / "r.json")
    with pytest.raises(CrsBenchError, match="the run is configured with Weights"):
        load_reference(tmp_path / "r.json", weights=replace(WEIGHTS, components=(0.5, 0.3, 0.2)))


def test_part_can_be_frozen_and_loaded(tmp_path):
    part = cohort().restrict(["eye"])
    freeze_reference(part, tmp_path / "part.json")
    assert load_reference(tmp_path / "part.json").digest == part.digest
