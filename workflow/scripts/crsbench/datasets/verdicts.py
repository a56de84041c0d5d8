"""The verdict on a dataset: what its release leads one to expect against what was found.

Everything is counted over the labelled images that the adapter lists, before any is left out: the
numbers of a release belong to its label files. What the release does not state is found and
reported all the same, with nothing to compare it with.
"""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from crsbench.datasets.definitions import DatasetDefinition, label_files
from crsbench.datasets.locks import WrongFileError, check_file, lock_of
from crsbench.datasets.releases import Expected, RemoteFile
from crsbench.datasets.tables import Listing, read_table
from crsbench.errors import DataError, listed

_LOG = logging.getLogger(__name__)
Value = int | str


@dataclass(frozen=True)
class Verdict:
    """What was expected and found of a dataset, by name.

    Parameters
    ----------
    expected
        What the release states.
    found
        What was counted or digested.
    """

    dataset: str
    version: str | None
    expected: Mapping[str, Value]
    found: Mapping[str, Value]

    @property
    def differences(self) -> list[str]:
        """One text for each thing that is not as the release states."""
        return [
            f"{what}: {self.found.get(what, 0)}, expected {value}"
            for what, value in self.expected.items()
            if self.found.get(what, 0) != value
        ]

    @property
    def summary(self) -> str:
        """The verdict in three words or so."""
        if not self.expected:
            return "no release stated"
        return "unlike the release" if self.differences else "as released"

    @property
    def complaint(self) -> str:
        """One line that names the differences, for a message."""
        return (
            f"{self.dataset}: {len(self.differences)} of {len(self.expected)} facts about its "
            f"files are not those of release {self.version}: "
            f"{listed(self.differences, 3, between='; ')}"
        )

    def as_record(self) -> dict[str, Any]:
        """Return the verdict as plain values, for a JSON file."""
        names = [*self.expected, *(name for name in self.found if name not in self.expected)]
        return {
            "dataset": self.dataset,
            "release": self.version,
            "verdict": self.summary,
            "differences": self.differences,
            "facts": {
                name: {"expected": self.expected.get(name), "found": self.found.get(name)}
                for name in names
            },
        }


def settle(verdict: Verdict, *, unlike_release: Literal["error", "warn"]) -> None:
    """Raise, or warn, where a dataset is not as its release.

    Raises
    ------
    DataError
        Something differs, and that is not to be passed over.
    """
    if not verdict.differences:
        return
    if unlike_release == "error":
        raise DataError(
            f"{verdict.complaint}. Get the files of that release; or, where others are meant, set "
            "unlike_release=warn, or give them a definition of their own"
        )
    _LOG.warning("%s", verdict.complaint)


def judge(definition: DatasetDefinition, listing: Listing) -> Verdict:
    """Compare a dataset's label files with its release.

    Parameters
    ----------
    definition
        The dataset, with the release that it says it is.
    listing
        What the label files say.
    """
    release = definition.release
    expected: dict[str, Value] = {}
    found = _count(definition, listing.samples)
    if release is not None:
        expected |= _stated(release.expected)
        for remote, path in files_there(definition, release.files):
            stated, seen = _compare_file(remote, path, definition)
            expected |= stated
            found |= seen
    return Verdict(
        dataset=definition.name,
        version=None if release is None else release.version,
        expected=expected,
        found=found,
    )


def _stated(expected: Expected) -> dict[str, Value]:
    facts: dict[str, Value | None] = {
        "images": expected.images,
        "label digest": expected.label_digest,
        "group digest": expected.group_digest,
        **{f"class {name}": count for name, count in expected.classes.items()},
        **{f"view {name}": count for name, count in expected.views.items()},
        **{f"label source {name}": count for name, count in expected.label_sources.items()},
    }
    for source, counts in expected.findings.items():
        for name, (positive, uncertain) in counts.items():
            facts |= {
                f"{name} positive ({source})": positive,
                f"{name} uncertain ({source})": uncertain,
            }
    return {name: value for name, value in facts.items() if value is not None}


def _count(definition: DatasetDefinition, samples: pl.DataFrame) -> dict[str, Value]:
    facts: dict[str, Value] = {
        "images": samples.height,
        "label digest": label_digest(definition, samples),
        "group digest": _lines_digest(_group_lines(samples)),
    }
    if definition.task != "multilabel":
        counts = samples["labels"].list.first().value_counts(name="n").rows()
        facts |= {f"class {definition.classes[label]}": n for label, n in sorted(counts)}
    for column, what in (("view", "view"), ("label_source", "label source")):
        present = samples[column].drop_nulls().value_counts(name="n").sort(column)
        facts |= {f"{what} {name}": n for name, n in present.rows()}
    if definition.task == "multilabel":
        facts |= dict(_findings(definition, samples))
    return facts


def _findings(definition: DatasetDefinition, samples: pl.DataFrame) -> Iterator[tuple[str, int]]:
    for (source,), part in samples.group_by("label_source", maintain_order=True):
        where = f" ({source})" if source is not None else ""
        for position, name in enumerate(definition.classes):
            labels = part["labels"].list.get(position)
            yield f"{name} positive{where}", int((labels == 1).sum())
            yield f"{name} uncertain{where}", int((labels == -1).sum())


def label_digest(definition: DatasetDefinition, samples: pl.DataFrame) -> str:
    """Return the digest of labels that does not depend on how a file writes them.

    It is the SHA-256 of the sorted lines ``image,class``; ordinal classes are named by their
    number, and a multilabel line has the labels in the order of the classes.
    """
    if definition.task == "multiclass":
        names = [definition.classes[label] for label in samples["labels"].list.first().to_list()]
    else:
        names = [",".join(map(str, labels)) for labels in samples["labels"].to_list()]
    return _lines_digest(
        f"{image},{name}" for image, name in zip(samples["sample"], names, strict=True)
    )


def _group_lines(samples: pl.DataFrame) -> Iterator[str]:
    for sample, group in samples.select("sample", "group").iter_rows():
        yield f"{sample},{'' if group == sample else group}"


def _lines_digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def files_there(
    definition: DatasetDefinition, files: Iterable[RemoteFile]
) -> Iterator[tuple[RemoteFile, Path]]:
    """Yield each file of a release with where it lies, packed or not: the one that is read.

    Archives are none of them: they are removed once they are unpacked.
    """
    labels = {path.name: path for path in label_files(definition)}
    for remote in files:
        names = dict.fromkeys([remote.name, remote.name.removesuffix(".gz")])
        read = [labels[name] for name in names if name in labels]
        there = [path for path in read or map(definition.root.joinpath, names) if path.is_file()]
        if there and not remote.unpack:
            yield remote, there[0]


def _compare_file(
    remote: RemoteFile, path: Path, definition: DatasetDefinition
) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return what is stated about a file, and what was found."""
    expected: dict[str, Value] = {}
    found: dict[str, Value] = {}
    if remote.rows is not None:
        expected[f"rows of {remote.name}"] = remote.rows
        found[f"rows of {remote.name}"] = read_table(path, required=[]).height
    lock = lock_of(definition.root)
    is_known = remote.bytes or remote.sha256 or remote.md5 or lock.digest_of(remote.name)
    if is_known and path.name == remote.name:  # of an unpacked file nothing else is known
        expected[remote.name] = "the file as published or first seen"
        found[remote.name] = expected[remote.name]
        try:
            check_file(path, remote, lock)
        except WrongFileError as error:
            found[remote.name] = f"{path}: {error}"
    return expected, found
