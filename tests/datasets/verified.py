"""Verification and index in one call, as the workflow makes them one after the other."""

from pathlib import Path
from typing import Literal, NamedTuple

import polars as pl

from crsbench.datasets.definitions import DatasetDefinition, load_adapter, missing_data
from crsbench.datasets.indexing import build_index
from crsbench.datasets.tables import read_images
from crsbench.datasets.verification import Level, verify_images
from crsbench.errors import DataError
from crsbench.files import write_csv


class Verified(NamedTuple):
    """The tables of both."""

    index: pl.DataFrame
    exclusions: pl.DataFrame
    images: pl.DataFrame
    duplicates: pl.DataFrame


def verify_and_index(
    definition: DatasetDefinition,
    *,
    conflicting_labels: Literal["drop_conflicting", "keep"],
    near_duplicates: int | None,
    verify: Level,
    threads: int,
    unusable: Path,
) -> Verified:
    """Verify, write and read the table of images, index."""
    message = missing_data(definition)
    if message is not None:
        raise DataError(message)
    images = verify_images(
        load_adapter(definition).read_listing(definition),
        definition,
        verify=verify,
        threads=threads,
        unusable=unusable,
    )
    path = unusable.with_name("images.csv")
    write_csv(images, path)
    result = build_index(
        definition,
        read_images(path),
        conflicting_labels=conflicting_labels,
        near_duplicates=near_duplicates,
    )
    path.unlink()
    return Verified(result.index, result.exclusions, images, result.duplicates)
