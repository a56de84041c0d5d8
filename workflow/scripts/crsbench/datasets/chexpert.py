"""CheXpert: frontal radiographs, 14 findings; images of a patient stay together.

``train.csv`` (labels by a text labeller) and ``valid.csv`` (by radiologists) are pooled, as the
paper's 191,229 images are. Their ``Path`` starts with a folder of the release that users rename or
never get: the official batches unpack without ``train/``. So the first component is dropped, and
the rest is looked for in the root, in ``CheXpert-v1.0*`` and in the batch folders.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from crsbench.datasets.definitions import DatasetDefinition
from crsbench.datasets.tables import (
    LISTING_SCHEMA,
    ROW,
    Listing,
    counted,
    excluded,
    finding_labels,
    labelled,
    read_table,
    without_repeats,
)
from crsbench.errors import DataError

_LABEL_SOURCES = {"train": "nlp", "valid": "radiologist"}
_PATH = r"^[^/]+/(?P<side>train|valid)/(?P<patient>patient\d+)/(?P<rest>.+)$"


def label_files(definition: DatasetDefinition) -> list[Path]:
    """Return the two label files."""
    return [_label_file(definition.root, side) for side in _LABEL_SOURCES]


def _label_file(root: Path, side: str) -> Path:
    found = [place / f"{side}.csv" for place in _places(root) if (place / f"{side}.csv").is_file()]
    if len(found) > 1:
        raise DataError(
            f"{side}.csv stands in {' and in '.join(str(path.parent) for path in found)}; "
            "name one of these folders as the root of the dataset"
        )
    return found[0] if found else root / f"{side}.csv"


def _places(root: Path) -> list[Path]:
    """Return the folders that may hold label files, ``train``, ``valid`` or patients."""
    patterns = ("CheXpert-v1.0*", "*batch*", "CheXpert-v1.0*/*batch*")
    places = [path for pattern in patterns for path in sorted(root.glob(pattern)) if path.is_dir()]
    return list(dict.fromkeys([root, *places]))


def read_listing(definition: DatasetDefinition) -> Listing:
    """Read the frontal images of both files."""
    homes = {(side, patient): home for side, patient, home in _find_patients(definition.root)}
    parts = [_read_side(side, definition, homes) for side in _LABEL_SOURCES]
    return Listing(
        samples=pl.concat(part.samples for part in parts),
        exclusions=pl.concat(part.exclusions for part in parts),
        folders=tuple(definition.root / home for home in sorted(set(homes.values()))),
        filtered=frozenset().union(*(part.filtered for part in parts)),
    )


def _find_patients(root: Path) -> Iterator[tuple[str, str, str]]:
    """Yield side, patient, and the folder below the root that holds the patient's folder.

    Where a patient is found twice, the place that `_places` names first counts: it comes last.
    """
    for place in reversed(_places(root)):
        in_batch = [("train", place)] if "batch" in place.name else []
        for side, home in [*in_batch, *((side, place / side) for side in _LABEL_SOURCES)]:
            if home.is_dir():
                relative = home.relative_to(root).as_posix()
                for patient in home.iterdir():
                    if patient.name.startswith("patient"):
                        yield side, patient.name, relative


def _read_side(
    side: str, definition: DatasetDefinition, homes: dict[tuple[str, str], str]
) -> Listing:
    path = _label_file(definition.root, side)
    table = read_table(path, required=["Path", "Frontal/Lateral", "AP/PA", *definition.classes])
    table = _located(table, path, homes)
    frontal = _frontal(table, path)
    frontal = labelled(
        frontal, path, labels=finding_labels(definition.classes), allowed="1, 0, -1 or blank"
    )
    listed = frontal.select(
        ROW,
        "sample",
        "path",
        "labels",
        group="patient",
        view="AP/PA",
        source=pl.lit(None, pl.String),
        label_source=pl.lit(_LABEL_SOURCES[side]),
    )
    rows, repeated = without_repeats(listed, path, key="sample")
    lateral = table.join(frontal, on=ROW, how="anti")
    return Listing(
        samples=rows.select(LISTING_SCHEMA.names()).cast(LISTING_SCHEMA),
        exclusions=pl.concat(
            [
                excluded(repeated, reason="repeated row"),
                counted(lateral.height, path=path, reason="lateral view"),
            ]
        ),
        folders=(),
        filtered=frozenset(lateral["path"]),
    )


def _located(table: pl.DataFrame, path: Path, homes: dict[tuple[str, str], str]) -> pl.DataFrame:
    """Add side, patient, sample, and the image's path below the root."""
    table = table.with_columns(pl.col("Path").str.extract_groups(_PATH).alias("parts")).unnest(
        "parts"
    )
    strange = table.filter(pl.col("rest").is_null())
    if not strange.is_empty():
        raise DataError(
            f"{path}: Path {strange['Path'][0]!r} in row {strange[ROW][0]}; expected "
            "FOLDER/train/patientNNNNN/… or FOLDER/valid/patientNNNNN/…"
        )
    found = pl.DataFrame(
        [(*key, home) for key, home in homes.items()],
        schema={"side": pl.String, "patient": pl.String, "home": pl.String},
        orient="row",
    )
    table = table.join(found, on=["side", "patient"], how="left", maintain_order="left")
    inside = pl.format("{}/{}/{}", pl.coalesce("home", "side"), "patient", "rest")
    return table.with_columns(
        path=inside.str.strip_prefix("./"),
        sample=pl.format("{}/{}/{}", "side", "patient", pl.col("rest").str.replace(r"\.\w+$", "")),
    )


def _frontal(table: pl.DataFrame, path: Path) -> pl.DataFrame:
    view = pl.col("Frontal/Lateral")
    unknown = table.filter(~view.is_in(["Frontal", "Lateral"]).fill_null(value=False))
    if not unknown.is_empty():
        raise DataError(
            f"{path}: Frontal/Lateral is {unknown['Frontal/Lateral'][0]!r} in row "
            f"{unknown[ROW][0]}; expected Frontal or Lateral"
        )
    return table.filter(view == "Frontal")
