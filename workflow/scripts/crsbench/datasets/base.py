"""From files to the index of a dataset: definitions, label tables, and what is left out.

The law of an index:

- One row is one image that can be used; whatever else was found stands in the exclusions, by name
  where something is wrong with it, and as a count where a rule of the protocol leaves it out.
- Columns of label files are found by name; values that are not allowed are errors.
- The order of rows, files and columns changes nothing.
- Byte-identical images share a duplicate cluster, and a cluster lies within one group.

An adapter is a module of this package with two functions: ``label_files(definition)`` lists the
files with labels that it reads, and ``read_listing(definition)`` turns them into a `Listing`. It
touches no image.
"""

import gzip
import importlib
import io
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self, cast

import polars as pl
from pydantic import ConfigDict, Field, ValidationError, model_validator

from crsbench.config import Model, Name, read_yaml
from crsbench.errors import ConfigError, DataError
from crsbench.files import sha256_file, write_csv
from crsbench.images import SUFFIXES, ImageReport, inspect_images
from crsbench.progress import progress
from crsbench.provenance import digest, frame_digest

Text = Annotated[str, Field(min_length=1)]
Task = Literal["multiclass", "ordinal", "multilabel"]

#: What an adapter says about each labelled image.
LISTING_SCHEMA = pl.Schema(
    {
        "sample": pl.String(),
        "path": pl.String(),
        "group": pl.String(),
        "labels": pl.List(pl.Int8()),
        "view": pl.String(),
        "source": pl.String(),
        "label_source": pl.String(),
    }
)
INDEX_SCHEMA = pl.Schema(LISTING_SCHEMA | {"duplicate_cluster": pl.String()})
EXCLUSIONS_SCHEMA = pl.Schema({"sample": pl.String(), "path": pl.String(), "reason": pl.String()})
IMAGES_SCHEMA = pl.Schema(
    {
        "sample": pl.String(),
        "path": pl.String(),
        "bytes": pl.Int64(),
        "mode": pl.String(),
        "width_px": pl.Int64(),
        "height_px": pl.Int64(),
        "note": pl.String(),
    }
)
#: Modules of this package that a definition can name.
ADAPTERS = ("aptos2019", "chexpert", "folder", "isic2019", "mimic_cxr")

#: Column of a label table with the row's number in its file; the header is row 1.
ROW = "row of the file"

_N_SHOWN = 3


# --- Definitions ----------------------------------------------------------------------------------


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
        Medical domain, to match encoders with.
    root
        Folder of its files; ``{data_root}``, ``{store}`` and ``{name}`` are filled in.
    shift_of
        The dataset whose probes are evaluated on this one; None for a dataset of its own.
    exclusions
        CSV (sample, path, reason) of damaged or missing images whose loss is accepted.
    access, licence, citation
        How to get it, under what terms, what to cite.
    synthetic
        Whether it shows no real case.
    csv, columns
        Only for the adapter ``folder``: its label file below the root, and that file's columns.
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
    synthetic: bool = False
    csv: Text = "labels.csv"
    columns: Columns = Columns()
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
        foreign = sorted({"csv", "columns"} & self.model_fields_set)
        if foreign and self.adapter != "folder":
            raise ValueError(f"{foreign[0]}: only the adapter folder has it, not {self.adapter}")
        return self


class Adapter(Protocol):
    """What a module of this package offers as an adapter."""

    def label_files(self, definition: DatasetDefinition) -> list[Path]:
        """Return the label files that the adapter reads, whether or not they exist."""

    def read_listing(self, definition: DatasetDefinition) -> "Listing":
        """Read the label files."""


def _adapter(definition: DatasetDefinition) -> Adapter:
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
        lines = [f"{where}: {_explain(dict(fault))}" for fault in error.errors()]
        raise ConfigError("\n".join(lines)) from error


def _explain(fault: dict[str, Any]) -> str:
    key = ".".join(str(part) for part in fault["loc"])
    place = f"{key}: " if key else ""
    if fault["type"] == "extra_forbidden":
        models: dict[Any, type[Model]] = {"columns": Columns, "phantom": PhantomDrawing}
        model = models.get(fault["loc"][0], DatasetDefinition)
        allowed = sorted(set(model.model_fields) - {"name"})
        return f"{place}unknown key; allowed: {', '.join(allowed)}"
    if fault["type"] == "missing":
        return f"{place}missing"
    if fault["type"] == "value_error":
        return f"{place}{fault['msg'].removeprefix('Value error, ')}"
    return f"{place}{fault['msg']}, got {fault['input']!r}"


def _check_shift(
    target: DatasetDefinition, definitions: Mapping[str, DatasetDefinition], path: Path
) -> None:
    """Raise unless a shift target has the task and the classes of its source."""
    if target.shift_of is None:
        return
    where = f"{path}: dataset {target.name}: shift_of: {target.shift_of}"
    source = definitions.get(target.shift_of)
    if source is None:
        raise ConfigError(f"{where} is not defined; allowed: {', '.join(sorted(definitions))}")
    if (source.task, source.classes) != (target.task, target.classes):
        raise ConfigError(f"{where} has another task or other classes; they must be equal")


def label_files(definition: DatasetDefinition) -> list[Path]:
    """Return the label files that are read for a dataset, whether or not they exist."""
    return _adapter(definition).label_files(definition)


def missing_data(definition: DatasetDefinition) -> str | None:
    """Return what of a dataset is missing and how to get it; None where all is there."""
    if not definition.root.is_dir():
        lacking = f"its folder {definition.root} does not exist"
    else:
        absent = [str(path) for path in label_files(definition) if not path.is_file()]
        if not absent:
            return None
        lacking = f"{', '.join(absent)} not found"
    access = f"\n{definition.access.strip()}" if definition.access.strip() else ""
    return f"{definition.name}: {lacking}; get the data, or set data_root or its root{access}"


# --- Label tables ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listing:
    """What the label files of a dataset say, before any image is looked at.

    Parameters
    ----------
    samples
        Labelled images, `LISTING_SCHEMA`; one row a sample, in any order.
    exclusions
        Rows that were left out, `EXCLUSIONS_SCHEMA`.
    folders
        Folders below the root that hold the images; whatever image lies in them without a label is
        listed as an exclusion.
    filtered
        Paths of images that have a row, but that a rule of the protocol leaves out.
    """

    samples: pl.DataFrame
    exclusions: pl.DataFrame
    folders: tuple[Path, ...]
    filtered: frozenset[str] = frozenset()


def read_table(
    path: Path,
    *,
    required: Sequence[str],
    optional: Sequence[str] = (),
    others_allowed: bool = True,
) -> pl.DataFrame:
    """Read columns of a CSV by name, as text; blank cells are null.

    UTF-8 with or without a byte-order mark; any line ends; ``.gz`` is unpacked.

    Returns
    -------
    DataFrame
        `ROW`, the required columns, and
        those of the optional ones that are there.

    Raises
    ------
    DataError
        The file cannot be read, is empty, lacks a column, or has others that are not allowed.
    """
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if path.suffix == ".gz" else raw
        table = pl.read_csv(
            io.BytesIO(text.decode("utf-8-sig").encode()),
            infer_schema=False,
        ).with_row_index(ROW, offset=2)
    except pl.exceptions.NoDataError:
        raise DataError(f"{path}: the file is empty; get it again") from None
    except (OSError, EOFError, UnicodeDecodeError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: not a readable UTF-8 CSV: {reason}; get it again") from error
    _check_columns(table, required, path)
    if table.is_empty():
        raise DataError(f"{path}: a header and no rows; get it again")
    found = [name for name in optional if name in table.columns]
    surplus = sorted(set(table.columns) - {ROW, *required, *found})
    if surplus and not others_allowed:
        raise DataError(f"{path}: unknown columns {', '.join(surplus)}; expected {required} only")
    return table.select(ROW, *required, *found).with_columns(pl.col(pl.String()).replace("", None))


def _check_columns(table: pl.DataFrame, required: Sequence[str], path: Path) -> None:
    found = table.columns[1:]
    for name in required:
        if name not in found:
            raise DataError(
                f"{path}: no column {name!r}; found {', '.join(map(repr, found))}; columns are "
                "read by name, in any order"
            )
        if f"{name}_duplicated_0" in found:
            raise DataError(f"{path}: column {name!r} stands there twice; remove one")


def without_repeats(
    table: pl.DataFrame, path: Path, *, key: str
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Keep one of the rows that repeat each other, and list the rest.

    Parameters
    ----------
    table
        Has `ROW`, the key, and what must agree.
    path
        Where the table was read, for errors.
    key
        Column that names the row; it may not be blank.

    Returns
    -------
    rows, repeated
        The table with one row a key; the surplus rows.

    Raises
    ------
    DataError
        A key is blank, or rows with the same key say different things.
    """
    blank = table.filter(pl.col(key).is_null())[ROW].to_list()
    if blank:
        raise DataError(f"{path}: {key} is blank in {_rows(blank)}; every row needs one")
    content = [name for name in table.columns if name != ROW]
    distinct = table.sort(ROW).unique(content, keep="first", maintain_order=True)
    contrary = distinct.filter(pl.col(key).is_duplicated()).sort(key, ROW)
    if not contrary.is_empty():
        first = contrary.filter(pl.col(key) == contrary[key][0])
        raise DataError(
            f"{path}: {contrary[key].n_unique()} {key} with contradictory rows, such as "
            f"{first[key][0]!r} in {_rows(first[ROW].to_list())}; correct the file"
        )
    return distinct, table.join(distinct, on=ROW, how="anti").sort(ROW)


def class_labels(column: str, classes: Sequence[str]) -> pl.Expr:
    """Return the label of each row from a column of class names; null for any other value."""
    position = pl.col(column).replace_strict(
        list(classes), list(range(len(classes))), default=None, return_dtype=pl.Int8
    )
    return pl.when(position.is_not_null()).then(pl.concat_list(position))


def finding_labels(classes: Sequence[str]) -> pl.Expr:
    """Return the labels of each row from one column a finding; null for a value not allowed.

    1 is positive, 0 and blank are negative, -1 is uncertain (protocol, section 2).
    """
    return pl.concat_list(_number(name, allowed=(-1, 0, 1), blank=0) for name in classes)


def one_hot_labels(classes: Sequence[str]) -> pl.Expr:
    """Return the label of each row from one-hot columns; null where they are not one-hot."""
    hot = pl.concat_list(_number(name, allowed=(0, 1), blank=None) for name in classes)
    is_one_hot = (hot.list.sum() == 1) & ~hot.list.eval(pl.element().is_null()).list.any()
    return pl.when(is_one_hot).then(pl.concat_list(hot.list.arg_max().cast(pl.Int8)))


def _number(column: str, *, allowed: Sequence[int], blank: int | None) -> pl.Expr:
    value = pl.col(column).cast(pl.Float64, strict=False)
    known = pl.when(value.is_in([float(number) for number in allowed])).then(value).cast(pl.Int8)
    return pl.when(pl.col(column).is_null()).then(pl.lit(blank, pl.Int8)).otherwise(known)


def labelled(table: pl.DataFrame, path: Path, *, labels: pl.Expr, allowed: str) -> pl.DataFrame:
    """Add the column ``labels``.

    Parameters
    ----------
    table, path
        A label table and the file it was read from.
    labels
        Expression that yields a list of integers, null or with nulls where a value is not known.
    allowed
        What the error says is expected.

    Raises
    ------
    DataError
        A row's values are not known labels.
    """
    table = table.with_columns(labels.alias("labels"))
    is_known = pl.col("labels").list.eval(pl.element().is_not_null()).list.all()
    unknown = table.filter(~is_known.fill_null(value=False)).sort(ROW)
    if unknown.is_empty():
        return table
    row = unknown.row(0, named=True)
    values = ", ".join(f"{k}={v!r}" for k, v in row.items() if k not in (ROW, "labels"))
    raise DataError(
        f"{path}: unknown labels in {unknown.height} rows, first in row {row[ROW]} ({values}); "
        f"expected {allowed}; correct the file or the classes of the definition"
    )


def excluded(frame: pl.DataFrame, *, reason: pl.Expr | str) -> pl.DataFrame:
    """Return exclusions for the rows of a frame that has ``sample`` and ``path``."""
    text = pl.lit(reason) if isinstance(reason, str) else reason
    return frame.select("sample", "path", reason=text).cast(EXCLUSIONS_SCHEMA)


def counted(n_images: int, *, path: Path, reason: str) -> pl.DataFrame:
    """Return one exclusion that counts the images a rule leaves out; none for a count of 0."""
    row = {"sample": None, "path": path.name, "reason": f"{reason}: {n_images} images"}
    return pl.DataFrame([row] if n_images else [], schema=EXCLUSIONS_SCHEMA)


def _rows(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:_N_SHOWN])
    more = f" and {len(numbers) - _N_SHOWN} more" if len(numbers) > _N_SHOWN else ""
    return f"row{'s' if len(numbers) > 1 else ''} {shown}{more}"


# --- The index ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IndexResult:
    """The index of a dataset, sorted by sample, and what was left out or converted."""

    index: pl.DataFrame
    exclusions: pl.DataFrame
    images: pl.DataFrame


def index_metadata(definition: DatasetDefinition, index: pl.DataFrame) -> dict[str, str]:
    """Return the metadata of an index file: dataset, task, classes, and a digest of it all."""
    identity = {
        "dataset": definition.name,
        "task": definition.task,
        "classes": json.dumps(definition.classes),
    }
    return identity | {"index_digest": digest("index", *identity.values(), frame_digest(index))}


def build_index(
    definition: DatasetDefinition,
    *,
    conflicting_labels: Literal["drop_conflicting", "keep"],
    verify: Literal["full", "size"],
    threads: int,
    unusable: Path,
) -> IndexResult:
    """Index a dataset: labels, files, damage, duplicates.

    Parameters
    ----------
    definition
        The dataset.
    conflicting_labels
        What happens to byte-identical images with different labels: all are dropped and listed,
        or all are kept in one group.
    verify
        Decode every image (``full``), or only see that it is there and not empty (``size``).
    threads
        How many images are decoded at a time.
    unusable
        CSV that is written when images are missing or damaged. Its rows are what a definition's
        ``exclusions`` accepts.

    Returns
    -------
    IndexResult
        Index (`INDEX_SCHEMA`), exclusions (`EXCLUSIONS_SCHEMA`) and images (`IMAGES_SCHEMA`).

    Raises
    ------
    DataError
        Data are missing, label files are wrong, or images are missing or damaged and not accepted.
    """
    message = missing_data(definition)
    if message is not None:
        raise DataError(message)
    listing = _adapter(definition).read_listing(definition)
    _check_listing(listing.samples, definition)
    sizes = _find_images(definition.root, listing.folders)
    samples, accepted = _without_accepted(listing.samples.sort("sample"), definition)
    images, problems = _inspect(samples, sizes, definition, verify=verify, threads=threads)
    if not problems.is_empty():
        _refuse(problems, samples.height, definition, unusable)
    clusters = _find_duplicates(images, definition.root)
    index = _with_clusters(samples, clusters)
    index, conflicts = _resolve_conflicts(index, definition, policy=conflicting_labels)
    unlabelled = _unlabelled(listing, sizes)
    exclusions = pl.concat([listing.exclusions, accepted, conflicts, unlabelled])
    if index.is_empty():
        raise DataError(f"{definition.name}: no image is left after {exclusions.height} exclusions")
    return IndexResult(
        index=_merge_groups(index).select(INDEX_SCHEMA.names()).sort("sample"),
        exclusions=exclusions.sort("reason", "sample", "path", nulls_last=True),
        images=images,
    )


def _check_listing(samples: pl.DataFrame, definition: DatasetDefinition) -> None:
    """Raise where an adapter broke its promise: a fault of the program, not of the data."""
    n_labels = len(definition.classes) if definition.task == "multilabel" else 1
    wrong_length = samples.filter(pl.col("labels").list.len() != n_labels)
    if samples.schema != LISTING_SCHEMA or not wrong_length.is_empty():
        raise TypeError(f"adapter {definition.adapter}: {samples.schema}, {n_labels} labels a row")
    if samples["sample"].n_unique() != samples.height:
        raise TypeError(f"adapter {definition.adapter}: a sample is listed twice")


def _find_images(root: Path, folders: Iterable[Path]) -> dict[str, int]:
    """Return the size in bytes of every image file in the folders, by its path below the root."""
    sizes: dict[str, int] = {}
    for top in folders:
        for folder, _, names in os.walk(top, followlinks=True):
            relative = Path(folder).relative_to(root)
            for name in names:
                if os.path.splitext(name)[1].lower() in SUFFIXES:  # noqa: PTH122 - 400,000 times
                    file = os.path.join(folder, name)  # noqa: PTH118
                    with suppress(FileNotFoundError):  # a link to nothing is no file
                        sizes[(relative / name).as_posix()] = os.stat(file).st_size  # noqa: PTH116
    return sizes


def _without_accepted(
    samples: pl.DataFrame, definition: DatasetDefinition
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Take out the images whose loss is accepted."""
    path = definition.exclusions
    if path is None:
        return samples, EXCLUSIONS_SCHEMA.to_frame()
    if not path.is_file():
        raise DataError(f"{definition.name}: exclusions: {path} does not exist")
    table = read_table(path, required=["sample", "reason"])
    accepted, _ = without_repeats(table, path, key="sample")
    unknown = accepted.join(samples, on="sample", how="anti")
    if not unknown.is_empty():
        raise DataError(
            f"{path}: sample {unknown['sample'][0]!r} in row {unknown[ROW][0]} is not among the "
            f"labelled images of {definition.name}; remove the row"
        )
    reasons = accepted.select("sample", reason=pl.format("accepted: {}", "reason"))
    left_out = samples.join(reasons, on="sample", how="inner")
    kept = samples.join(reasons, on="sample", how="anti", maintain_order="left")
    return kept, excluded(left_out, reason=pl.col("reason"))


def _inspect(
    samples: pl.DataFrame,
    sizes: Mapping[str, int],
    definition: DatasetDefinition,
    *,
    verify: Literal["full", "size"],
    threads: int,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what was seen of each image, and which of them cannot be used."""
    there = samples.filter(pl.col("path").is_in(sizes.keys()))
    absent = samples.join(there, on="sample", how="anti")
    paths = [definition.root / path for path in there["path"]]
    if verify == "full":
        reports = progress(
            inspect_images(paths, threads=threads),
            total=len(paths),
            what=f"decoding {definition.name}",
            unit="images",
        )
    else:
        reports = (_sized(sizes[path]) for path in there["path"])
    columns = [*IMAGES_SCHEMA.names()[2:], "problem"]
    seen = pl.DataFrame(
        [[getattr(report, name) for name in columns] for report in reports],
        schema={name: IMAGES_SCHEMA.get(name, pl.String()) for name in columns},
        orient="row",
    )
    images = pl.concat([there.select("sample", "path"), seen], how="horizontal")
    damaged = images.filter(pl.col("problem").is_not_null())
    problems = [
        excluded(absent, reason="no such file"),
        excluded(damaged, reason=pl.col("problem")),
    ]
    return images.select(IMAGES_SCHEMA.names()), pl.concat(problems).sort("sample")


def _sized(n_bytes: int) -> ImageReport:
    return ImageReport(n_bytes, None, None, None, "", None if n_bytes else "zero bytes")


def _refuse(
    problems: pl.DataFrame, n_samples: int, definition: DatasetDefinition, path: Path
) -> None:
    write_csv(problems, path)
    shown = "; ".join(f"{row[1]}: {row[2]}" for row in problems.head(_N_SHOWN).iter_rows())
    n_absent = problems.filter(pl.col("reason") == "no such file").height
    raise DataError(
        f"{definition.name}: {problems.height} of {n_samples} images in {definition.root} cannot "
        f"be used, {n_absent} because there is no file, {problems.height - n_absent} because they "
        f"are damaged ({shown}{'; …' if problems.height > _N_SHOWN else ''}). {path} lists all. "
        "Get or repair them; or accept their loss: copy that file to a place of yours and name it "
        f"under `exclusions:` in the definition of {definition.name}"
    )


def _find_duplicates(images: pl.DataFrame, root: Path) -> dict[str, list[str]]:
    """Return the samples of each set of byte-identical files, keyed by the first of them.

    Only files of equal size are read.
    """
    rivals = images.filter(pl.col("bytes").is_duplicated())
    identical: dict[tuple[int, str], list[str]] = defaultdict(list)
    rows = rivals.select("sample", "path", "bytes").sort("sample").iter_rows()
    for sample, path, n_bytes in progress(
        rows, total=rivals.height, what="comparing files of equal size", unit="files"
    ):
        identical[n_bytes, sha256_file(root / path)].append(sample)
    return {samples[0]: samples for samples in identical.values() if len(samples) > 1}


def _with_clusters(samples: pl.DataFrame, clusters: Mapping[str, list[str]]) -> pl.DataFrame:
    members = {sample: name for name, cluster in clusters.items() for sample in cluster}
    cluster = pl.col("sample").replace_strict(
        list(members), list(members.values()), default=None, return_dtype=pl.String
    )
    return samples.with_columns(duplicate_cluster=cluster)


def _resolve_conflicts(
    index: pl.DataFrame,
    definition: DatasetDefinition,
    *,
    policy: Literal["drop_conflicting", "keep"],
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Drop and list all images of a cluster whose labels differ, if that is the policy."""
    if policy == "keep":
        return index, EXCLUSIONS_SCHEMA.to_frame()
    n_labels = pl.col("labels").n_unique().over("duplicate_cluster")
    conflicts = index.filter(pl.col("duplicate_cluster").is_not_null() & (n_labels > 1))
    named = [_label_text(labels, definition) for labels in conflicts["labels"]]
    reason = pl.format(
        "identical images with different labels (cluster {}): {}",
        "duplicate_cluster",
        pl.Series("labels", named, dtype=pl.String),
    )
    kept = index.join(conflicts, on="sample", how="anti", maintain_order="left")
    return kept, excluded(conflicts, reason=reason)


def _label_text(labels: Iterable[int], definition: DatasetDefinition) -> str:
    if definition.task != "multilabel":
        return " ".join(definition.classes[label] for label in labels)
    named = zip(definition.classes, labels, strict=True)
    return " ".join(f"{name}={label}" for name, label in named if label) or "no finding"


def _merge_groups(index: pl.DataFrame) -> pl.DataFrame:
    """Join the groups that share a duplicate cluster, under the name of the first of them."""
    parent: dict[str, str] = {}

    def find(group: str) -> str:
        while (above := parent.get(group, group)) != group:
            group = above
        return group

    shared = index.filter(pl.col("duplicate_cluster").is_not_null())
    for (_,), cluster in shared.group_by("duplicate_cluster"):
        roots = sorted({find(group) for group in cluster["group"]})
        parent.update(dict.fromkeys(roots, roots[0]))
    merged = {group: find(group) for group in shared["group"].unique()}
    return index.with_columns(pl.col("group").replace(merged))


def _unlabelled(listing: Listing, sizes: Mapping[str, int]) -> pl.DataFrame:
    known = listing.filtered.union(listing.samples["path"])
    paths = sorted(path for path in sizes if path not in known)
    frame = pl.DataFrame({"path": paths}, schema={"path": pl.String}).with_columns(
        sample=pl.lit(None, pl.String)
    )
    return excluded(frame, reason="no label")
