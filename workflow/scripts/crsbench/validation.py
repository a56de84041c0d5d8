"""What pydantic found wrong, in words for whoever wrote the file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails


def describe_errors(
    error: ValidationError,
    model: type[BaseModel],
    *,
    where: Callable[[str], str],
    documented_in: str,
) -> str:
    """Turn a validation error into lines of place, key, what was got and what is allowed.

    Parameters
    ----------
    error
        What pydantic raised for `model`.
    model
        What was validated.
    where
        What to call the place of a fault, by its top-level key ("" for the whole).
    documented_in
        The page that a missing key is looked up in.
    """
    lines = []
    for fault in error.errors():
        path = [str(part) for part in fault["loc"]]
        place = ": ".join([where(path[0] if path else ""), *filter(None, [".".join(path)])])
        lines.append(f"{place}: {_explain(fault, model, documented_in)}")
    return "\n".join(lines)


def first_fault(error: ValidationError, path: Path) -> tuple[str, str]:
    """Return place and message of the first fault in a file that the program wrote itself."""
    fault = error.errors()[0]
    return ": ".join(map(str, [path, *fault["loc"]])), fault["msg"]


def _explain(fault: ErrorDetails, model: type[BaseModel], documented_in: str) -> str:
    kind = fault["type"]
    if kind == "extra_forbidden":
        return f"unknown key; allowed: {', '.join(_allowed_keys(model, fault['loc'][:-1]))}"
    if kind == "missing":
        return f"missing; {documented_in} documents it"
    if kind == "union_tag_invalid":
        tags = fault["ctx"]["expected_tags"].replace("'", "")
        return f"{fault['ctx']['tag']!r} is unknown; allowed: {tags}"
    if kind == "union_tag_not_found":
        return f"not one entry of a known kind: {fault['input']!r}; {documented_in} lists them"
    message = fault["msg"].removeprefix("Value error, ")
    return message if kind == "value_error" else f"{message}, got {fault['input']!r}"


def _allowed_keys(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    """Return the keys that a user can write at a location inside a model.

    Left out are those that the program fills in: the name of an entry, and the tag of a member of
    a union, which a location has as a part of its own.
    """
    models, filled_in = [model], {"name"}
    for part in map(str, location):
        fields = [each.model_fields[part] for each in models if part in each.model_fields]
        tags = {each: _tag_field(each, part) for each in models}
        tagged = [each for each, field in tags.items() if field]
        models = tagged or [m for field in fields for m in _models_in(field.annotation)] or models
        filled_in |= {field for field in tags.values() if field}
    return sorted(set(models[-1].model_fields) - filled_in)


def _tag_field(model: type[BaseModel], tag: str) -> str | None:
    """Return the field of a model that can only be this tag."""
    for name, field in model.model_fields.items():
        if get_origin(field.annotation) is Literal and get_args(field.annotation) == (tag,):
            return name
    return None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that an annotation names, however deep inside tuples and unions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]
