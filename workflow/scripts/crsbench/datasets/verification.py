"""The images of a dataset, looked at before anything is computed from them.

The law of verification:

- It looks at every labelled image, as closely as its level says: ``size`` (it is there, and not
  empty), ``sample`` (`SAMPLE_SIZE` of them are decoded to the last byte, the same ones every time),
  ``full`` (all of them).
- Whatever is read is digested. Files of equal size are always read, so that identical ones are
  found at every level.
- An image that is missing, damaged or not the published one is an error, unless its loss is
  accepted (`crsbench.datasets.exclusions`). Nothing is repaired, nothing is passed over.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

from crsbench.datasets.definitions import DatasetDefinition
from crsbench.datasets.exclusions import without_accepted
from crsbench.datasets.releases import read_digests
from crsbench.datasets.tables import IMAGES_SCHEMA, LISTING_SCHEMA, NO_LABEL, Listing, excluded
from crsbench.digests import generator
from crsbench.errors import DataError, listed
from crsbench.files import sha256_file, write_csv
from crsbench.images import SUFFIXES, ImageReport, inspect_images
from crsbench.progress import progress

Level = Literal["full", "sample", "size"]
#: How many images ``verify: sample`` decodes.
SAMPLE_SIZE = 1000
#: Share of missing images from which the paths are more likely wrong than the files gone.
_NEARLY_ALL = 0.9
_ABSENT = "no such file"


def verify_images(
    listing: Listing,
    definition: DatasetDefinition,
    *,
    verify: Level,
    threads: int,
    unusable: Path,
) -> pl.DataFrame:
    """Look at the images of a dataset.

    Parameters
    ----------
    listing
        What the label files say.
    definition
        The dataset.
    verify
        How closely: see the module's law.
    threads
        How many images are decoded at a time.
    unusable
        CSV that is written when images are missing or damaged. Its rows are what a definition's
        ``exclusions`` accepts.

    Returns
    -------
    DataFrame
        `IMAGES_SCHEMA`, sorted by sample and path: every labelled image, and every other image in
        the folders, with neither sample nor look.

    Raises
    ------
    DataError
        Images are missing or damaged and not accepted.
    """
    check_listing(listing.samples, definition)
    sizes = find_images(definition.root, listing.folders)
    samples, accepted = without_accepted(listing.samples.sort("sample"), definition)
    there = samples.filter(pl.col("path").is_in(sizes.keys()))
    absent = samples.join(there, on="sample", how="anti")
    images = _look(there, sizes, definition, verify=verify, threads=threads)
    images = _with_rivals_digested(images, definition)
    damaged = images.filter(pl.col("decoded") != pl.col("sought"))
    reasons = [_why_absent(definition.root / path) for path in absent["path"]]
    absent = absent.with_columns(reason=pl.Series(reasons, dtype=pl.String))
    problems = pl.concat(
        [
            excluded(absent, reason=pl.col("reason")),
            excluded(damaged, reason=pl.col("decoded")),
        ]
    ).sort("sample")
    if not problems.is_empty():
        _refuse(problems, samples.height, definition, unusable)
    parts = [
        images.select(IMAGES_SCHEMA.names()),
        _not_looked_at(accepted.rename({"reason": "decoded"}), sizes),
        _not_looked_at(_unlabelled(listing, sizes), sizes),
    ]
    return pl.concat(parts).sort("sample", "path", nulls_last=True)


def describe_images(images: pl.DataFrame, *, verify: Level) -> dict[str, Any]:
    """Return what a table of verified images comes to, as plain values.

    Parameters
    ----------
    images
        As `verify_images` returns it.
    verify
        The level it was made at.
    """
    labelled = images.drop_nulls("sample")
    decoded = images.filter(decoded="yes")
    modes = decoded["mode"].value_counts(name="n").sort("mode").rows()
    return {
        "level": verify,
        "labelled": labelled.height,
        "decoded": decoded.height,
        "digested": labelled["sha256"].count(),
        "bytes": int(images["bytes"].sum()),
        "modes": dict(modes),
        "losses accepted": labelled["decoded"].str.starts_with("accepted: ").sum(),
        "without label": images["sample"].null_count(),
    }


def check_listing(samples: pl.DataFrame, definition: DatasetDefinition) -> None:
    """Raise where an adapter broke its promise: a fault of the program, not of the data."""
    n_labels = len(definition.classes) if definition.task == "multilabel" else 1
    wrong_length = samples.filter(pl.col("labels").list.len() != n_labels)
    if samples.schema != LISTING_SCHEMA or not wrong_length.is_empty():
        raise TypeError(f"adapter {definition.adapter}: {samples.schema}, {n_labels} labels a row")
    if samples["sample"].n_unique() != samples.height:
        raise TypeError(f"adapter {definition.adapter}: a sample is listed twice")


def find_images(root: Path, folders: Iterable[Path]) -> dict[str, int]:
    """Return the size in bytes of every image file in the folders, by its path below the root."""
    sizes: dict[str, int] = {}
    to_visit = [(str(top), top.relative_to(root).as_posix()) for top in folders if top.is_dir()]
    while to_visit:
        folder, below_root = to_visit.pop()
        with os.scandir(folder) as entries:  # not Path.iterdir: 400,000 files
            for entry in entries:
                path = entry.name if below_root == "." else f"{below_root}/{entry.name}"
                if entry.is_dir():
                    to_visit.append((entry.path, path))
                elif os.path.splitext(path)[1].lower() in SUFFIXES:  # noqa: PTH122
                    with suppress(FileNotFoundError):  # a link to nothing is no file
                        sizes[path] = entry.stat().st_size
    return sizes


def _look(
    there: pl.DataFrame,
    sizes: Mapping[str, int],
    definition: DatasetDefinition,
    *,
    verify: Level,
    threads: int,
) -> pl.DataFrame:
    """Return what was seen of each image: `IMAGES_SCHEMA`, and ``sought``, what is good."""
    chosen = _chosen(there, definition, verify)
    decoded = sorted(chosen)
    reports = dict(zip(decoded, _inspected(decoded, definition, threads), strict=True))
    rows = [
        _row(reports.get(path) or _sized(sizes[path]), sought=_sought(path, chosen))
        for path in there["path"]
    ]
    columns = {name: IMAGES_SCHEMA.get(name, pl.String()) for name in _SEEN}
    seen = pl.DataFrame(rows, schema=columns, orient="row")
    return pl.concat([there.select("sample", "path"), seen], how="horizontal")


_SEEN = (
    "bytes",
    "sha256",
    "mode",
    "width_px",
    "height_px",
    "perceptual_hash",
    "decoded",
    "note",
    "sought",
)


def _sought(path: str, chosen: frozenset[str]) -> str:
    return "yes" if path in chosen else "not decoded"


def _row(report: ImageReport, *, sought: str) -> tuple[str | int | None, ...]:
    return (
        report.bytes,
        report.sha256,
        report.mode,
        report.width_px,
        report.height_px,
        report.perceptual_hash,
        report.problem or sought,
        report.note,
        sought,
    )


def _chosen(there: pl.DataFrame, definition: DatasetDefinition, verify: Level) -> frozenset[str]:
    """Return the paths that are decoded; a sample follows from the dataset and its images."""
    paths = there["path"].unique(maintain_order=True).to_list()
    if verify == "size":
        return frozenset()
    if verify == "full" or len(paths) <= SAMPLE_SIZE:
        return frozenset(paths)
    drawn = generator("verify", definition.name).permutation(len(paths))[:SAMPLE_SIZE]
    return frozenset(paths[position] for position in drawn)


def _inspected(
    paths: list[str], definition: DatasetDefinition, threads: int
) -> Iterator[ImageReport]:
    """Decode images and compare them with the published digests, where there are any."""
    published = _published_digests(definition) if paths else {}
    reports = progress(
        inspect_images([definition.root / path for path in paths], threads=threads),
        total=len(paths),
        what=f"decoding {definition.name}",
        unit="images",
    )
    for path, report in zip(paths, reports, strict=True):
        expected = published.get(path)
        if report.problem is None and expected is not None and report.sha256 != expected:
            reason = f"SHA-256 {report.sha256}, expected {expected} as published"
            yield replace(report, problem=reason)
        else:
            yield report


def _published_digests(definition: DatasetDefinition) -> dict[str, str]:
    images = None if definition.release is None else definition.release.images
    path = None if images is None else definition.root / images.digests
    return {} if path is None or not path.is_file() else read_digests(path)


def _sized(n_bytes: int) -> ImageReport:
    return ImageReport(n_bytes, None, None, None, "", None if n_bytes else "zero bytes")


def _with_rivals_digested(images: pl.DataFrame, definition: DatasetDefinition) -> pl.DataFrame:
    """Digest the files of equal size that were not read."""
    rivals = images.filter(pl.col("bytes").is_duplicated() & pl.col("sha256").is_null())
    if rivals.is_empty():
        return images
    paths = progress(
        rivals["path"].unique(maintain_order=True).to_list(),
        total=rivals["path"].n_unique(),
        what="comparing files of equal size",
        unit="files",
    )
    digests = {path: sha256_file(definition.root / path) for path in paths}
    read = pl.col("path").replace_strict(digests, default=None, return_dtype=pl.String)
    return images.with_columns(sha256=pl.coalesce("sha256", read))


def _not_looked_at(frame: pl.DataFrame, sizes: Mapping[str, int]) -> pl.DataFrame:
    """Return rows of the table for sample, path and why the image was not decoded."""
    n_bytes = [sizes.get(path) for path in frame["path"]]
    missing = [name for name in IMAGES_SCHEMA.names() if name not in frame.columns]
    return (
        frame.with_columns(pl.lit(None).alias(name) for name in missing)
        .with_columns(bytes=pl.Series(n_bytes, dtype=pl.Int64), note=pl.lit(""))
        .select(IMAGES_SCHEMA.names())
        .cast(IMAGES_SCHEMA)
    )


def _unlabelled(listing: Listing, sizes: Mapping[str, int]) -> pl.DataFrame:
    known = listing.filtered.union(listing.samples["path"])
    paths = sorted(path for path in sizes if path not in known)
    frame = pl.DataFrame({"path": paths}, schema={"path": pl.String})
    return frame.with_columns(sample=pl.lit(None, pl.String), decoded=pl.lit(NO_LABEL))


def _why_absent(path: Path) -> str:
    """Say why a path is not among the images that were found."""
    if path.suffix.lower() in SUFFIXES or not path.is_file():
        return _ABSENT
    return f"no image by its name, expected an ending of {', '.join(sorted(SUFFIXES))}"


def _refuse(
    problems: pl.DataFrame, n_samples: int, definition: DatasetDefinition, path: Path
) -> None:
    write_csv(problems, path)
    shown = listed([f"{row[1]}: {row[2]}" for row in problems.iter_rows()], 3, between="; ")
    absent = problems.filter(pl.col("reason") == _ABSENT)
    raise DataError(
        f"{definition.name}: {problems.height} of {n_samples} images in {definition.root} cannot "
        f"be used, {absent.height} because there is no file, {problems.height - absent.height} "
        f"because they are damaged or refused ({shown}). {path} lists all. "
        f"{_what_to_do(problems, absent, n_samples, definition)}"
    )


def _what_to_do(
    problems: pl.DataFrame, absent: pl.DataFrame, n_samples: int, definition: DatasetDefinition
) -> str:
    about = []
    if not absent.is_empty():
        sought = definition.root / absent["path"][0]
        about.append(f"Paths are relative to {definition.root}: {sought} was looked for.")
    if definition.adapter == "folder" and absent.height >= _NEARLY_ALL * n_samples:
        column = definition.columns.path
        return " ".join(
            [*about, f"Is {column!r} right as `columns.path`, and the folder right as `root`?"]
        )
    about.append(
        "Get or repair them; or accept their loss: copy that file to a place of yours and name it "
        f"under `exclusions:` in the definition of {definition.name}"
    )
    if problems["reason"].str.starts_with("translucent").any():
        about[-1] += ". docs/add-a-dataset.md says how to flatten translucent images"
    return " ".join(about)
