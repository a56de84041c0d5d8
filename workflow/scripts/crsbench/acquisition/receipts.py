"""Acquiring a dataset: what is there is used as it is, what is missing is fetched if it may be.

What acquisition found or fetched stands in a receipt, a JSON file in the store. Files of the user
are never replaced or removed: a file is fetched only where there is none of its name.

Who may be fetched from is up to the release (`crsbench.datasets.releases`): nobody (``manual``),
anybody (``none``), Kaggle's client, or PhysioNet with an account. Everything arrives in
``{root}/.acquiring`` first.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import requests

from crsbench.acquisition.archives import DamagedArchiveError, unpack
from crsbench.acquisition.kaggle import download_competition
from crsbench.acquisition.physionet import (
    explain_access,
    fetch_images,
    has_credentials,
    read_names,
)
from crsbench.acquisition.transfer import (
    PATIENCE,
    Patience,
    TransferError,
    download,
    open_session,
)
from crsbench.datasets.definitions import (
    DatasetDefinition,
    label_files,
    load_adapter,
    missing_data,
)
from crsbench.datasets.exclusions import without_accepted
from crsbench.datasets.locks import WrongFileError, check_file, lock_of, name_below
from crsbench.datasets.presence import absent_parts
from crsbench.datasets.releases import Release, RemoteFile, read_digests
from crsbench.errors import DataError
from crsbench.files import sha256_file, write_csv

_LOG = logging.getLogger(__name__)
STAGING = ".acquiring"


def acquire(
    definition: DatasetDefinition, *, not_acquired: Path, patience: Patience = PATIENCE
) -> dict[str, Any]:
    """See to it that the files of a dataset are there.

    Parameters
    ----------
    definition
        The dataset.
    not_acquired
        CSV that is written where images of a list could not be fetched.
    patience
        How long servers are waited for.

    Returns
    -------
    dict
        The receipt: the version of the release, what of it was ever fetched, and the label files
        with size and SHA-256.

    Raises
    ------
    DataError
        Files are missing and may not or cannot be fetched; the message says what to do.
    """
    release = definition.release
    if release is not None and release.authentication != "manual":
        _Acquisition(definition, release, not_acquired, patience).run()
    message = missing_data(definition)
    if message is not None:
        raise DataError(message)
    return {
        "dataset": definition.name,
        "version": None if release is None else release.version,
        "fetched": sorted(lock_of(definition.root).placed),
        "label_files": {
            name_below(definition.root, path): {
                "bytes": path.stat().st_size,
                "sha256": sha256_file(path),
            }
            for path in label_files(definition)
        },
    }


@dataclass(frozen=True)
class _Acquisition:
    """Fetches what a release has and a folder lacks."""

    definition: DatasetDefinition
    release: Release
    not_acquired: Path
    patience: Patience

    @property
    def root(self) -> Path:
        return self.definition.root

    @property
    def staging(self) -> Path:
        return self.root / STAGING

    def run(self) -> None:
        """Fetch it."""
        ways: Mapping[str, Callable[[], None]] = {
            "none": self._from_mirrors,
            "kaggle": self._from_kaggle,
            "physionet": self._from_physionet,
        }
        try:
            self._remove_unpacked()
            ways[self.release.authentication]()
        finally:
            if self.staging.is_dir() and not any(self.staging.iterdir()):
                self.staging.rmdir()

    def _remove_unpacked(self) -> None:
        """Remove the archives of which a killed job had unpacked all; those are in the lock."""
        lock = lock_of(self.root)
        for remote in self.release.files:
            archive = self.staging / remote.name
            is_unpacked = lock.digest_of(remote.name) and not absent_parts(self.root, remote)
            if remote.unpack and archive.is_file() and is_unpacked:
                archive.unlink()

    def _from_mirrors(self) -> None:
        with open_session(with_credentials=False, patience=self.patience) as session:
            for remote in self._absent():
                try:
                    self._place(remote, self._download(remote, session))
                except TransferError as error:
                    raise DataError(self._with_access(str(error))) from None

    def _from_kaggle(self) -> None:
        for remote in self._absent():
            if not absent_parts(self.root, remote):  # unpacked with the one before
                continue
            try:
                archive = self.staging / remote.name
                if not archive.is_file():
                    archive = download_competition(str(self.release.competition), self.staging)
                self._check(archive, remote)
            except DataError as error:
                raise DataError(self._with_access(str(error))) from error
            self._place(remote, archive)

    def _from_physionet(self) -> None:
        absent = self._absent()
        if not self._account_needed(absent):
            return
        with open_session(with_credentials=True, patience=self.patience) as session:
            for remote in absent:
                try:
                    self._place(remote, self._download(remote, session))
                except TransferError as error:
                    version = self.release.version
                    explained = explain_access(error, remote.urls[0], version=version)
                    raise DataError(self._with_access(str(explained))) from None
            self._fetch_images(session)

    def _account_needed(self, absent: Sequence[RemoteFile]) -> bool:
        """Return whether anything is to be fetched, and may be."""
        if missing_data(self.definition) is None and self._absent_images().is_empty():
            return False
        urls = [url for remote in absent for url in remote.urls]
        listing = [] if self.release.images is None else [self.release.images.base]
        if all(has_credentials(url) for url in [*urls, *listing]):
            return True
        self._go_on_without_account()
        return False

    def _go_on_without_account(self) -> None:
        """Go on with what is there, if that has labels: verification lists what is missing."""
        message = missing_data(self.definition)
        if message is not None:
            raise DataError(
                f"{message}\n~/.netrc has no entry for the host, so that nothing can be fetched"
            )
        _LOG.warning(
            "%s: files are missing and ~/.netrc has no entry for the host: nothing is fetched",
            self.definition.name,
        )

    def _fetch_images(self, session: requests.Session) -> None:
        """Fetch the images that the labels name and the folder lacks."""
        listing = self.release.images
        images = self._absent_images()
        if listing is None or images.is_empty():
            return
        _LOG.info("%s: %d images are to be fetched", self.definition.name, images.height)
        failed = fetch_images(
            images,
            self.root,
            base=listing.base,
            names=read_names(self.root / listing.names),
            digests=read_digests(self.root / listing.digests),
            session=session,
            patience=self.patience,
            version=self.release.version,
        )
        if not failed.is_empty():
            write_csv(failed, self.not_acquired)
            raise DataError(
                f"{self.definition.name}: {failed.height} of {images.height} images could not be "
                f"fetched, such as {failed['path'][0]} ({failed['reason'][0]}); "
                f"{self.not_acquired} lists all. Run again to try those once more; or accept their "
                "loss: copy that file to a place of yours and name it under `exclusions:` in the "
                f"definition of {self.definition.name}"
            )

    def _absent(self) -> list[RemoteFile]:
        """Return the files of the release of which the folder lacks something."""
        return [remote for remote in self.release.files if absent_parts(self.root, remote)]

    def _absent_images(self) -> pl.DataFrame:
        """Return sample and path of images that are wanted and not there; none without labels."""
        if self.release.images is None or missing_data(self.definition) is not None:
            return pl.DataFrame(schema={"sample": pl.String, "path": pl.String})
        samples = load_adapter(self.definition).read_listing(self.definition).samples
        wanted, _ = without_accepted(samples, self.definition)
        is_absent = [not (self.root / path).exists() for path in wanted["path"]]
        return wanted.filter(pl.Series(is_absent, dtype=pl.Boolean)).select("sample", "path")

    def _download(self, remote: RemoteFile, session: requests.Session) -> Path:
        """Fetch one file into the staging folder, unless it is there from an earlier try."""
        target = self.staging / remote.name
        if target.is_file():
            self._check(target, remote)
        else:
            lock = lock_of(self.root)
            source = download(
                remote.urls,
                target,
                session=session,
                patience=self.patience,
                check=lambda path: check_file(path, remote, lock),
                space=2 if remote.unpack else 1,
            )
            _LOG.info("%s: %s from %s", self.definition.name, remote.name, source)
        return target

    def _check(self, path: Path, remote: RemoteFile) -> None:
        try:
            check_file(path, remote, lock_of(self.root))
        except WrongFileError as error:
            path.unlink()
            raise DataError(
                f"{path}: {error}; it was removed; run again to fetch it anew, or, where its "
                f"publisher has packed it anew, unpack it by hand into {self.root}"
            ) from None

    def _place(self, remote: RemoteFile, path: Path) -> None:
        """Give a fetched file its place, and keep its digest once it is known to be whole."""
        lock = lock_of(self.root)
        if not remote.unpack:
            lock.keep(remote, path)
            path.rename(self.root / remote.name)
            return
        try:
            unpack(
                path,
                self.root,
                wanted=remote.unpack,
                before_placing=lambda: lock.keep(remote, path),
            )
        except DamagedArchiveError as error:
            path.unlink()
            raise DataError(f"{error}; it was removed; run again to fetch it anew") from error
        path.unlink()

    def _with_access(self, message: str) -> str:
        """Return what is missing and how to get it by hand, and why it was not fetched."""
        name, access = self.definition.name, self.definition.access.strip()
        return f"{missing_data(self.definition) or f'{name}: {access}'}\n{message}"
