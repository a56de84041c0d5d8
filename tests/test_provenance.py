"""Digests of code: what changes no number is free to change."""

import pytest

from crsbench import provenance
from crsbench.errors import DataError
from crsbench.provenance import (
    Accepted,
    accepted_digests,
    code_digest,
    read_accepted,
    running_digest,
    write_accepted,
)


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A library of three modules and a script that uses one, which uses another."""
    package = tmp_path / "crsbench"
    package.mkdir()
    (package / "metrics.py").write_text("from crsbench import ranks\n\ndef f():\n    return 1\n")
    (package / "ranks.py").write_text("def g():\n    return 2\n")
    (package / "files.py").write_text("def h():\n    return 3\n")
    script = tmp_path / "evaluate.py"
    script.write_text("from crsbench.metrics import f\nfrom crsbench.files import h\n")
    monkeypatch.setattr(provenance, "PACKAGE", package)
    provenance._imports.cache_clear()
    provenance._normalised.cache_clear()
    yield script, package
    provenance._imports.cache_clear()
    provenance._normalised.cache_clear()


def _after(path, text, script):
    path.write_text(text)
    provenance._imports.cache_clear()
    provenance._normalised.cache_clear()
    return code_digest(script)


@pytest.mark.parametrize(
    ("module", "text", "changes"),
    [
        ("ranks.py", "# why\ndef g():\n    '''Doc.'''\n    return 2\n", False),
        ("ranks.py", "def g():\n\n    return  2\n", False),
        ("ranks.py", "def g():\n    return 4\n", True),
        ("files.py", "def h():\n    return 5\n", False),
    ],
)
def test_code_that_computes_something_else_changes_the_digest(library, module, text, changes):
    script, package = library
    before = code_digest(script)
    assert (_after(package / module, text, script) != before) is changes


def test_a_module_loaded_by_name_counts_only_where_it_is_named(library):
    script, package = library
    (package / "loader.py").write_text("X = 1\n")
    assert code_digest(script) != code_digest(script, ["loader"])


ACCEPTED = {"evaluate": {"new": Accepted(stands_for="old", reason="renamed")}}


def test_accepted_code_is_read_as_it_was_written(tmp_path):
    assert read_accepted(tmp_path) == {}
    path = write_accepted(ACCEPTED, tmp_path)
    assert read_accepted(tmp_path) == ACCEPTED
    assert accepted_digests(tmp_path) == {"new": "old"}
    before = path.read_bytes()
    write_accepted(ACCEPTED, tmp_path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"accepted_code\.json: Invalid JSON.*; mend it, or delete the file"),
        ('{"evaluate": {"new": {}}}', r"evaluate: new: stands_for: Field required"),
        ('{"evaluate": {"new": {"stands_for": "o", "by": "x"}}}', r"new: by: Extra inputs"),
    ],
)
def test_a_damaged_file_of_accepted_code_is_named_with_the_place(tmp_path, text, message):
    (tmp_path / "accepted_code.json").write_text(text)
    with pytest.raises(DataError, match=message):
        accepted_digests(tmp_path)


def test_a_job_names_the_code_that_runs_and_not_what_it_counts_as(tmp_path, library, monkeypatch):
    script, _ = library
    monkeypatch.setattr(provenance, "SCRIPTS", script.parent)
    code = {"script": script.name, "modules": [], "digest": "old"}
    assert running_digest(code, store=tmp_path) == "old"
    write_accepted(ACCEPTED, tmp_path)
    assert running_digest(code, store=tmp_path) == code_digest(script)
