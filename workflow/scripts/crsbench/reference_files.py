"""Files of references: frozen once, checked whenever they are read.

Law: a file of a reference is never overwritten, and one whose content has not the digest that is
written in it is refused.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from crsbench.crs import AXES, Anchors, Weights, check_members
from crsbench.errors import CrsBenchError
from crsbench.files import write_json
from crsbench.reference import AGGREGATE, FORMAT, Member, Reference, content_of, tabulate_cells

_KEYS = (
    *("format", "name", "units", "run", "restricted_from"),
    *("panel", "datasets", "axes", "anchors", "weights", "digest"),
)


def freeze_reference(reference: Reference, path: str | Path) -> None:
    """Write a reference to a new file.

    Raises
    ------
    CrsBenchError
        When the file exists, or when a scope cannot be scored.
    """
    path = Path(path)
    if path.exists():
        raise CrsBenchError(f"{path} exists; a reference is never overwritten: choose another name")
    for scope in reference.scopes.values():
        if scope.undefined:
            raise CrsBenchError(f"reference {reference.name}, {scope.name}: {scope.undefined}")
        check_members(scope.axes, scope.members)
    write_json(content_of(reference) | {"digest": reference.digest}, path)


def load_reference(path: str | Path, *, weights: Weights | None = None) -> Reference:
    """Read a reference and check its digest.

    Parameters
    ----------
    path
        The file.
    weights
        The weights that the run is configured with; None to take the reference's.

    Raises
    ------
    CrsBenchError
        When the file is missing, no reference, of another format, or altered since it was
        frozen; when its weights are not those of the run.
    """
    path = Path(path)
    if not path.is_file():
        raise CrsBenchError(f"{path}: no such reference; `crsbench reference freeze` writes one")
    content = _parse(path)
    try:
        reference = _from_content(content)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CrsBenchError(f"{path}: not a reference: {error!r}") from error
    if reference.digest != content["digest"]:
        raise CrsBenchError(
            f"{path}: digest {reference.digest} does not match the {content['digest']} written in "
            "it; the file was altered: restore it, or freeze a new reference"
        )
    if weights is not None and weights != reference.weights:
        raise CrsBenchError(
            f"{path}: frozen with {reference.weights}, the run is configured with {weights}; "
            "set score.components and score.axes to the reference's, or freeze another"
        )
    return reference


def _parse(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CrsBenchError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict) or set(content) != set(_KEYS):
        raise CrsBenchError(f"{path}: not a reference; its keys must be {', '.join(_KEYS)}")
    if content["format"] != FORMAT:
        raise CrsBenchError(f"{path}: format {content['format']}; this version reads {FORMAT}")
    return content


def _from_content(content: Mapping[str, Any]) -> Reference:
    panel = tuple(Member(**member) for member in content["panel"])
    cells = tabulate_cells(pl.DataFrame(content["axes"]))
    scopes = (AGGREGATE, *(name for name in content["datasets"] if name != AGGREGATE))
    return Reference(
        name=content["name"],
        units=content["units"],
        run=content["run"],
        restricted_from=content["restricted_from"],
        panel=panel,
        cells=cells.select([member.encoder for member in panel], content["datasets"]),
        anchors={scope: _anchors_from(content["anchors"][scope]) for scope in scopes},
        weights=Weights.named(content["weights"]),
    )


def _anchors_from(content: Mapping[str, Mapping[str, float]]) -> Anchors:
    lower, upper = ([content[end][name] for name in AXES] for end in ("lower", "upper"))
    return Anchors(np.array(lower, np.float64), np.array(upper, np.float64))
