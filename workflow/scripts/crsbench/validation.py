"""What pydantic found wrong, in words for whoever wrote the file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

#: What a value must be, by pydantic's name of the fault.
_EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a mapping of keys",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "model_attributes_type": "a mapping of keys",
    "model_type": "a mapping of keys",
    "path_type": "a path",
    "string_type": "a text",
    "tuple_type": "a list",
}


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
        if fault["type"] == "too_short" and len(fault["input"]) >= fault["ctx"]["min_length"]:
            continue  # of a list with enough items, some of which are faults of their own
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
        return _unknown_key(fault, _allowed_keys(model, fault["loc"][:-1]))
    if kind == "missing" and isinstance(fault["loc"][-1], int):
        return "missing; the list is too short"
    if kind == "missing":
        return f"missing; {documented_in} documents it"
    if kind == "union_tag_invalid":
        tags = fault["ctx"]["expected_tags"].replace("'", "")
        return f"{fault['ctx']['tag']!r} is unknown; allowed: {tags}"
    if kind == "union_tag_not_found":
        return f"not one entry of a known kind: {fault['input']!r}; {documented_in} lists them"
    if kind == "too_short":
        return f"expected at least {fault['ctx']['min_length']} in the list, got {fault['input']!r}"
    if kind == "too_long":
        return f"expected {fault['ctx']['max_length']} in the list, got {fault['input']!r}"
    if kind == "value_error":
        return fault["msg"].removeprefix("Value error, ")
    expected = f"expected {_EXPECTED[kind]}" if kind in _EXPECTED else fault["msg"]
    return f"{expected}{_such_as(fault, model)}, got {_got(fault['input'])}"


def _got(value: Any) -> str:
    return "nothing" if value is None else repr(value)


def _such_as(fault: ErrorDetails, model: type[BaseModel]) -> str:
    """Return how a value of the right kind is written, by the field's own example if it has one."""
    is_list, value = fault["type"] == "tuple_type", fault["input"]
    if len(fault["loc"]) != 1:
        return " in [ ]" if is_list else ""
    field = model.model_fields[str(fault["loc"][0])]
    if field.examples:
        return f", such as {field.examples[0]}"
    if is_list:
        return f", such as [{value}]" if isinstance(value, str | int | float) else " in [ ]"
    return ""


def _unknown_key(fault: ErrorDetails, allowed: Sequence[str]) -> str:
    """Say which keys there are; of one with a dot, how a key inside another is written."""
    first, *parts = str(fault["loc"][-1]).split(".")
    if not parts or first not in allowed:
        return f"unknown key; allowed: {', '.join(allowed)}"
    value = fault["input"]
    for part in reversed(parts):
        value = {part: value}
    inner = yaml.safe_dump(value, default_flow_style=True, width=float("inf")).strip()
    return (
        f"unknown key; a key inside another is written '{first}={inner}' after --config, and "
        f"{first}: {inner} in a file"
    )


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
