"""Provenance of code: the digest of what a script computes.

It is taken over the normalised syntax trees, so that comments, docstrings and white space are
free to change.
"""

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from crsbench.digests import digest

PACKAGE = Path(__file__).parent
#: Modules that move numbers about without changing them: editing one re-runs nothing.
WITHOUT_EFFECT_ON_NUMBERS = frozenset(
    {
        "config",
        "encoders.fetching",
        "errors",
        "files",
        "jobs",
        "plan",
        "progress",
        "provenance",
        "records",
    }
)


def code_digest(script: str | Path, modules: Iterable[str] = ()) -> str:
    """Return a digest of the code that a script runs: its own and the library's under it.

    Parameters
    ----------
    script
        The script of a rule.
    modules
        Library modules that the script loads by name (one encoder's loader, one dataset's
        adapter), as dotted names below ``crsbench``.

    Notes
    -----
    Imports are followed transitively through the syntax trees, without importing anything.
    Modules in `WITHOUT_EFFECT_ON_NUMBERS` and packages' ``__init__`` are left out.
    """
    script = Path(script)
    reached = _reach({*_imports(script), *modules})
    lines = [f"{name} {_normalised(_module_path(name))}" for name in sorted(reached)]
    return digest(_normalised(script), *lines)


def _reach(names: set[str]) -> set[str]:
    reached: set[str] = set()
    pending = set(names)
    while pending:
        name = pending.pop()
        if name not in reached and name not in WITHOUT_EFFECT_ON_NUMBERS:
            reached.add(name)
            pending |= _imports(_module_path(name))
    return reached


def _module_path(name: str) -> Path:
    return PACKAGE.joinpath(*name.split(".")).with_suffix(".py")


@cache
def _imports(path: Path) -> frozenset[str]:
    """Return the library modules that a file imports, as dotted names below ``crsbench``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    inside = {name.removeprefix("crsbench.") for name in names if name.startswith("crsbench.")}
    return frozenset(name for name in inside if _module_path(name).is_file())


@cache
def _normalised(path: Path) -> str:
    """Return a digest of a file's syntax tree without docstrings and positions."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = _without_docstring(node.body)
    return digest(ast.dump(tree))


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return body[1:] if isinstance(first.value.value, str) else body
    return body
