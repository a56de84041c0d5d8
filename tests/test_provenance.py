"""Digests of code: what changes no number is free to change."""

import pytest

from crsbench import provenance
from crsbench.provenance import code_digest


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
