"""What the publisher of a dataset released: files, where from, digests, counts.

A fact that is not published is null here, never a guess. Where no digest is published, the first
one seen is trusted and kept (`crsbench.datasets.locks`).
"""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from crsbench.config import Model
from crsbench.errors import DataError
from crsbench.redaction import holds_secret, redacted

Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Md5 = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Authentication = Literal["none", "kaggle", "physionet", "manual"]


class RemoteFile(Model):
    """One file of a release.

    Parameters
    ----------
    name
        What it is called below the root; an archive is removed once it is unpacked.
    urls
        Its mirrors, in the order in which they are tried; empty where a client fetches it.
    bytes, sha256, md5
        As published; null where nothing is.
    unpack
        For an archive: the files and folders at its top that are wanted.
    rows
        For a table: how many rows follow the header.
    """

    name: Text
    urls: tuple[Text, ...] = ()
    bytes: Annotated[int, Field(gt=0)] | None = None
    sha256: Sha256 | None = None
    md5: Md5 | None = None
    unpack: tuple[Text, ...] = ()
    rows: Annotated[int, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        for name in (self.name, *self.unpack):
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"name: {name!r} leaves the root of the dataset")
        for url in self.urls:
            if holds_secret(url):
                raise ValueError(
                    f"urls: {redacted(url)} carries a password or a signature; these belong into "
                    "~/.netrc, never into a definition"
                )
        return self


class ImageList(Model):
    """Images that are fetched one by one, from a list.

    Parameters
    ----------
    base
        What the paths in the list are relative to.
    names
        File of the release with one path a line.
    digests
        File of the release with the SHA-256 of each path, as ``sha256sum`` writes it.
    """

    base: Text
    names: Text
    digests: Text


class Expected(Model):
    """Counts of the labelled images that the benchmark uses; null or empty where unknown.

    Parameters
    ----------
    images
        All of them.
    classes
        Images of each class (multiclass, ordinal).
    views, label_sources
        Images of each view, and of each source of labels.
    findings
        For multilabel, by source of labels: positive and uncertain images of each class.
    label_digest, group_digest
        SHA-256 of the sorted lines ``image,class`` (ordinal: the class's number; multilabel: the
        labels in the order of the classes) and ``image,group`` (blank where the image has none),
        joined by newlines.
    """

    images: Count | None = None
    classes: Mapping[str, Count] = Field(default_factory=dict)
    views: Mapping[str, Count] = Field(default_factory=dict)
    label_sources: Mapping[str, Count] = Field(default_factory=dict)
    findings: Mapping[str, Mapping[str, tuple[Count, Count]]] = Field(default_factory=dict)
    label_digest: Sha256 | None = None
    group_digest: Sha256 | None = None


class Release(Model):
    """A published version of a dataset.

    Parameters
    ----------
    version
        As the publisher calls it.
    authentication
        ``none``, ``kaggle`` (client and account), ``physionet`` (account in ``~/.netrc``), or
        ``manual``: nothing is ever fetched.
    redistributable
        Whether the licence lets the images be passed on.
    competition
        Kaggle's name of it.
    files, images
        What is fetched.
    expected
        What its labels must come to.
    """

    version: Text | None = None
    authentication: Authentication
    redistributable: bool
    competition: Text | None = None
    files: tuple[RemoteFile, ...] = ()
    images: ImageList | None = None
    expected: Expected = Expected()

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if (self.authentication == "kaggle") != (self.competition is not None):
            raise ValueError("competition: kaggle needs it, and nothing else has it")
        listed = {file.name for file in self.files}
        if self.images is not None and not {self.images.names, self.images.digests} <= listed:
            raise ValueError(
                f"images: {self.images.names} and {self.images.digests} must be among the files"
            )
        return self


def read_digests(path: Path) -> dict[str, str]:
    """Read a list as ``sha256sum`` writes it: a digest and a path a line.

    Returns
    -------
    dict
        Digest by path.

    Raises
    ------
    DataError
        A line is something else.
    """
    digests: dict[str, str] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            digest, _, name = line.strip().partition(" ")
            if line.strip():
                if len(digest) != 64 or not name:
                    raise DataError(
                        f"{path}: line {number} is {line.strip()[:80]!r}, expected a SHA-256 and a "
                        "path; get the file again"
                    )
                digests[name.strip().removeprefix("*").removeprefix("./")] = digest.lower()
    return digests
