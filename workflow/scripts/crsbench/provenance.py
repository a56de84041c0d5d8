"""Provenance of code: the digest of what a script computes.

It is taken over the normalised syntax trees, so that comments, docstrings and white space are
free to change. A store may say of some code that it computes what other code did: jobs are then
identified by the code that first made them, while provenance and records name the code that ran.
"""

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from crsbench.digests import digest
from crsbench.errors import DataError
from crsbench.files import write_json
from crsbench.validation import first_fault

PACKAGE = Path(__file__).parent
SCRIPTS = PACKAGE.parent
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


class Accepted(BaseModel):
    """What one code counts as: the digest of the code that made the results, and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stands_for: str
    reason: str = ""


#: By stage, and by the digest of the code that is accepted.
AcceptedByStage = dict[str, dict[str, Accepted]]
_ACCEPTED = TypeAdapter(AcceptedByStage)


def accepted_path(store: str | Path) -> Path:
    """Return the file of a store that says which code is accepted there."""
    return Path(store) / "accepted_code.json"


def read_accepted(store: str | Path) -> AcceptedByStage:
    """Return which code is accepted in a store; nothing where there is no such file.

    Raises
    ------
    DataError
        The file is not one that ``crsbench accept`` writes.
    """
    path = accepted_path(store)
    if not path.is_file():
        return {}
    try:
        return _ACCEPTED.validate_json(path.read_bytes())
    except ValidationError as error:
        place, message = first_fault(error, path)
        raise DataError(
            f"{place}: {message}; mend it, or delete the file and call crsbench accept again"
        ) from error


def write_accepted(accepted: AcceptedByStage, store: str | Path) -> Path:
    """Write which code is accepted in a store; return the file."""
    path = accepted_path(store)
    write_json(_ACCEPTED.dump_python(accepted), path)
    return path


def accepted_digests(store: str | Path) -> dict[str, str]:
    """Return, by the digest of each accepted code, the digest that it counts as."""
    return {
        digest: accepted.stands_for
        for of_stage in read_accepted(store).values()
        for digest, accepted in of_stage.items()
    }


def running_digest(code: Mapping[str, Any], *, store: str | Path) -> str:
    """Return the digest of the code that runs a job.

    Parameters
    ----------
    code
        The job's param: ``script``, ``modules`` (`code_digest` explains both) and the ``digest``
        that the job is identified by.
    store
        Where that digest may be the one that other code counts as.
    """
    if code["digest"] not in accepted_digests(store).values():
        return code["digest"]  # nothing counts as it: it is that of the code itself
    return code_digest(SCRIPTS / code["script"], code["modules"])


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
