"""Digests and seeds: equal for equal work, different for any difference that matters."""

import numpy as np
import polars as pl
import pytest

from crsbench import provenance
from crsbench.provenance import code_digest, digest, frame_digest, generator


def test_parts_are_told_apart_by_type_and_boundary():
    parts = [("ab", "c"), ("a", "bc"), ("1",), (1,), (1.0,), (True,), (None,), ("None",), (b"1",)]
    assert len({digest(*part) for part in parts}) == len(parts)


def test_a_generator_follows_from_its_identity_alone():
    first, again, other = (generator("isic2019", seed).random(4) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_frame_digest_sees_names_types_values_and_order():
    frames = [
        pl.DataFrame({"a": [1, 2]}),
        pl.DataFrame({"b": [1, 2]}),
        pl.DataFrame({"a": [1.0, 2.0]}),
        pl.DataFrame({"a": [2, 1]}),
        pl.DataFrame({"a": [1, None]}),
    ]
    assert len({frame_digest(frame) for frame in frames}) == len(frames)
    assert frame_digest(frames[0]) == frame_digest(frames[0].clone())


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
