"""Definitions of datasets: what each is, where it lies, which adapter reads it.

An adapter is a module of this package with two functions: ``label_files(definition)`` lists the
files with labels that it reads, and ``read_listing(definition)`` turns them into a `Listing`. It
touches no image.
"""

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self, cast

from pydantic import ConfigDict, Field, ValidationError, model_validator

from crsbench.config import Model, Name, read_yaml
from crsbench.datasets.releases import Release
from crsbench.datasets.tables import Listing
from crsbench.errors import ConfigError
from crsbench.validation import describe_errors

Text = Annotated[str, Field(min_length=1)]
Task = Literal["multiclass", "ordinal", "multilabel"]

#: Modules of this package that a definition can name.
ADAPTERS = ("aptos2019", "chexpert", "folder", "isic2019", "mimic_cxr")

#: Keys that only one adapter reads.
_KEYS_OF_ADAPTERS = {"folder": {"csv", "columns"}, "mimic_cxr": {"official_split", "views"}}


class Columns(Model):
    """Names of the columns in the CSV of a `folder` dataset.

    ``label`` holds a class name (multiclass, ordinal); a multilabel CSV has one column for each
    class, named like it. ``group: null`` says that every image is its own group.
    """

    id: Text = "id"
    path: Text = "path"
    label: Text = "label"
    group: Text | None = "group"
    view: Text | None = None
    source: Text | None = None
    label_source: Text | None = None


class PhantomDrawing(Model):
    """What is drawn for a synthetic dataset (`crsbench.datasets.phantom`)."""

    kind: Text
    n_images: Annotated[int, Field(gt=0)]
    size_px: Annotated[int, Field(gt=0)]
    seed: Annotated[int, Field(ge=0)]


class DatasetDefinition(Model):
    """A dataset: what it is, where it lies, how its labels are read.

    Parameters
    ----------
    name, label
        Key in the definition file; what tables and figures call it.
    adapter
        Module of `crsbench.datasets` that reads it.
    task, classes
        Kind of labels, and the class names in the order of every output.
    domain
        Medical domain; for readers, nothing is computed from it yet.
    root
        Folder of its files; ``{data_root}``, ``{store}`` and ``{name}`` are filled in.
    shift_of
        The dataset whose probes are evaluated on this one; None for a dataset of its own.
    exclusions
        CSV (sample, path, reason) of damaged or missing images whose loss is accepted.
    access, licence, citation
        How to get it, under what terms, what to cite.
    release
        What its publisher released: files, mirrors, digests, counts. None where nothing is known.
    synthetic
        Whether it shows no real case.
    n_images
        About how many images it has, where its release states no count; only the estimates of
        ``crsbench doctor`` read it.
    csv, columns
        Only for the adapter ``folder``: its label file below the root, and that file's columns.
    official_split, views
        Only for the adapter ``mimic_cxr``: the part of the official split, and the values of
        ViewPosition, that are taken.
    phantom
        What to draw, where the files are made by the workflow.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    name: Name
    label: Text
    adapter: Text
    task: Task
    classes: Annotated[tuple[Text, ...], Field(min_length=1)]
    domain: Text
    root: Path
    shift_of: Name | None = None
    exclusions: Path | None = None
    access: str = ""
    licence: str = "not stated"
    citation: str = ""
    release: Release | None = None
    synthetic: bool = False
    n_images: Annotated[int, Field(gt=0)] | None = None
    csv: Text = "labels.csv"
    columns: Columns = Columns()
    official_split: Literal["train", "validate", "test"] = "test"
    views: Annotated[tuple[Text, ...], Field(min_length=1)] = ("AP", "PA")
    phantom: PhantomDrawing | None = None

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if self.adapter not in ADAPTERS:
            allowed = ", ".join(ADAPTERS)
            raise ValueError(f"adapter: {self.adapter!r} is unknown; allowed: {allowed}")
        repeated = sorted({name for name in self.classes if self.classes.count(name) > 1})
        if repeated:
            raise ValueError(f"classes: {', '.join(repeated)} named more than once")
        if self.task != "multilabel" and len(self.classes) < 2:
            raise ValueError(f"classes: {self.task} needs two or more, got {len(self.classes)}")
        for adapter, keys in _KEYS_OF_ADAPTERS.items():
            fields = type(self).model_fields
            foreign = [key for key in sorted(keys) if getattr(self, key) != fields[key].default]
            if foreign and self.adapter != adapter:
                raise ValueError(
                    f"{foreign[0]}: only the adapter {adapter} has it, not {self.adapter}"
                )
        if self.n_images is not None and self.stated_images is not None:
            raise ValueError("n_images: release.expected.images states it already; leave one out")
        return self

    @property
    def stated_images(self) -> int | None:
        """How many images its release has, where that is stated."""
        return None if self.release is None else self.release.expected.images


class Adapter(Protocol):
    """What a module of this package offers as an adapter."""

    def label_files(self, definition: DatasetDefinition) -> list[Path]:
        """Return the label files that the adapter reads, whether or not they exist."""

    def read_listing(self, definition: DatasetDefinition) -> Listing:
        """Read the label files."""


def load_adapter(definition: DatasetDefinition) -> Adapter:
    """Import the module that reads a dataset."""
    return cast(Adapter, importlib.import_module(f"crsbench.datasets.{definition.adapter}"))


def load_definitions(
    paths: Iterable[str | Path], *, data_root: str | Path, store: str | Path | None = None
) -> dict[str, DatasetDefinition]:
    """Read the dataset definitions of all files, in their order.

    Parameters
    ----------
    paths
        YAML files, each a mapping from a dataset's name to its definition. A user's file extends
        the project's.
    data_root, store
        What ``{data_root}`` and ``{store}`` in a root stand for. A definition without a root has
        ``{data_root}/{name}``.

    Raises
    ------
    ConfigError
        A file is missing or not YAML, a name is taken twice, or a definition is wrong; the
        message has one line for each fault, with file, dataset, key and what is allowed.
    """
    places = {"data_root": str(data_root)} | ({"store": str(store)} if store is not None else {})
    definitions: dict[str, DatasetDefinition] = {}
    homes: dict[str, Path] = {}
    for path in map(Path, paths):
        if not path.is_file():
            raise ConfigError(f"{path}: no such file of dataset definitions")
        for name, entry in read_yaml(path).items():
            if name in homes:
                raise ConfigError(
                    f"{path}: dataset {name} is defined in {homes[name]} too; rename one of them"
                )
            homes[name] = path
            definitions[name] = _read_definition(name, entry, path, places)
    for name, definition in definitions.items():
        _check_shift(definition, definitions, homes[name])
    return definitions


def _read_definition(
    name: str, entry: Any, path: Path, places: Mapping[str, str]
) -> DatasetDefinition:
    where = f"{path}: dataset {name}"
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}: expected a mapping of keys, got {entry!r}")
    template = str(entry.get("root", "{data_root}/{name}"))
    try:
        root = template.format(name=name, **places)
    except (KeyError, IndexError, ValueError) as error:
        allowed = ", ".join(f"{{{place}}}" for place in ("name", *places))
        raise ConfigError(f"{where}: root: {template!r} can hold {allowed} only") from error
    try:
        return DatasetDefinition.model_validate({**entry, "name": name, "root": root})
    except ValidationError as error:
        raise ConfigError(
            describe_errors(
                error,
                DatasetDefinition,
                where=lambda _: where,
                documented_in="docs/add-a-dataset.md",
            )
        ) from error


def _check_shift(
    target: DatasetDefinition, definitions: Mapping[str, DatasetDefinition], path: Path
) -> None:
    """Raise unless a shift target has the task of its source, and no class that it has not."""
    if target.shift_of is None:
        return
    where = f"{path}: dataset {target.name}: shift_of: {target.shift_of}"
    source = definitions.get(target.shift_of)
    if source is None:
        raise ConfigError(f"{where} is not defined; allowed: {', '.join(sorted(definitions))}")
    if source.task != target.task:
        raise ConfigError(f"{where}: its task is {source.task}, not {target.task}")
    foreign = [name for name in target.classes if name not in source.classes]
    if foreign:
        raise ConfigError(
            f"{where} has no class {', '.join(map(repr, foreign))}; classes are matched by name; "
            f"allowed: {', '.join(source.classes)}"
        )
    in_order = tuple(name for name in source.classes if name in target.classes)
    if target.task == "ordinal" and target.classes != in_order:
        raise ConfigError(f"{where} has its classes in another order: {', '.join(in_order)}")


def label_files(definition: DatasetDefinition) -> list[Path]:
    """Return the label files that are read for a dataset, whether or not they exist."""
    return load_adapter(definition).label_files(definition)


def absent_files(definition: DatasetDefinition) -> str | None:
    """Return which of a dataset's folder and label files are missing; None where none is."""
    if not definition.root.is_dir():
        return f"its folder {definition.root} does not exist"
    absent = [str(path) for path in label_files(definition) if not path.is_file()]
    return f"{', '.join(absent)} not found" if absent else None


def missing_data(definition: DatasetDefinition) -> str | None:
    """Return what of a dataset is missing and how to get it; None where all is there."""
    lacking = absent_files(definition)
    if lacking is None:
        return None
    access = f"\n{definition.access.strip()}" if definition.access.strip() else ""
    return f"{definition.name}: {lacking}; get the data, or set data_root or its root{access}"
