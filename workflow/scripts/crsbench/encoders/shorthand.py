"""Short forms of tagged entries in YAML: ``resize: {…}`` for ``{step: resize, …}``."""

from collections.abc import Mapping
from typing import Any


def tagged(tag: str, value: Any, *, bare: Mapping[str, str] | None = None) -> Any:
    """Return an entry with its kind under `tag`; what is no short form is returned as it is.

    Parameters
    ----------
    tag
        The key that holds the kind: ``step`` turns ``{resize: {…}}`` into ``{step: resize, …}``.
    value
        The entry as written.
    bare
        For each kind, the key that a bare value stands for: ``convert: RGB``.
    """
    if isinstance(value, str):
        return {tag: value}
    if not isinstance(value, Mapping) or tag in value or len(value) != 1:
        return value
    ((kind, content),) = value.items()
    if content is None:
        return {tag: kind}
    if isinstance(content, Mapping):
        return {**content, tag: kind}
    key = (bare or {}).get(kind) if isinstance(kind, str) else None
    return {tag: kind, key: content} if key else value
