"""Images whose loss a user accepts: rows of a CSV that the definition names.

The file is versioned with the user's work. Whatever is damaged or missing and does not stand there
is an error.
"""

import polars as pl

from crsbench.datasets.definitions import DatasetDefinition
from crsbench.datasets.tables import (
    EXCLUSIONS_SCHEMA,
    ROW,
    excluded,
    read_table,
    without_repeats,
)
from crsbench.errors import DataError


def without_accepted(
    samples: pl.DataFrame, definition: DatasetDefinition
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Take out the images whose loss is accepted.

    Parameters
    ----------
    samples
        Labelled images: ``sample``, ``path`` and more.
    definition
        The dataset.

    Returns
    -------
    kept, left_out
        The other images; those taken out, with the reason (`EXCLUSIONS_SCHEMA`).

    Raises
    ------
    DataError
        The file is not there, contradicts itself, or names no labelled image.
    """
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
