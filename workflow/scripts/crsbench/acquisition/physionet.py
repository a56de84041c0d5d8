"""PhysioNet: files of a credentialed release, and images one by one from its list.

A recursive download spends hours on index pages, and some of many files come damaged: so each image
is asked for by its name, compared with its published SHA-256, and asked for again if it differs.
What still fails is listed, never passed over.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import polars as pl
import requests
from requests.utils import get_netrc_auth

from crsbench.acquisition.transfer import Patience, TransferError, download
from crsbench.datasets.locks import WrongFileError
from crsbench.datasets.tables import EXCLUSIONS_SCHEMA
from crsbench.errors import DataError
from crsbench.files import sha256_file
from crsbench.progress import progress

_LOG = logging.getLogger(__name__)
#: Images at a time: the server is slow for each connection.
N_CONNECTIONS = 4
#: How often the images that failed are asked for again.
N_ROUNDS = 3


class AccessError(DataError):
    """The account has no access: no other file will come either."""


def has_credentials(url: str) -> bool:
    """Return whether ``~/.netrc``, or the file that NETRC names, knows the host of a link."""
    return get_netrc_auth(url) is not None


def explain_access(error: TransferError, url: str, *, version: str | None) -> DataError:
    """Return the error with what a 401 or 403 means at PhysioNet, or as it is.

    Parameters
    ----------
    error
        What came instead of a file.
    url
        The file's address.
    version
        Of the release, whose agreement has to be signed.
    """
    host = urlsplit(url).hostname
    if 401 in error.statuses:
        return AccessError(
            f"{error}. 401: {host} does not know the user or the password; put `machine {host} "
            "login USER password PASSWORD` into ~/.netrc (chmod 600), and run again"
        )
    if 403 in error.statuses:
        return AccessError(
            f"{error}. 403: the account has no access to version {version}: its own agreement is "
            "not signed, or the account is not credentialed. See to both, and run again"
        )
    return error


def read_names(path: Path) -> set[str]:
    """Read the paths of a list, one a line."""
    return {line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()}


def fetch_images(
    images: pl.DataFrame,
    root: Path,
    *,
    base: str,
    names: set[str],
    digests: Mapping[str, str],
    session: requests.Session,
    patience: Patience,
    version: str | None,
) -> pl.DataFrame:
    """Fetch images one by one, and those that failed again.

    Parameters
    ----------
    images
        ``sample`` and ``path`` of what is wanted.
    root
        Where they are put.
    base, names, digests
        Where they come from, which there are, and their SHA-256.
    session, patience
        The connection.
    version
        Of the release.

    Returns
    -------
    DataFrame
        Those that did not come, with the reason: `EXCLUSIONS_SCHEMA`.

    Raises
    ------
    AccessError
        The account has no access.
    DataError
        The disk is full.
    """

    def fetch(path: str) -> str | None:
        url = f"{base}{path}"
        try:
            download(
                [url],
                root / path,
                session=session,
                patience=patience,
                check=_comparison(path, digests),
            )
        except TransferError as error:
            explained = explain_access(error, url, version=version)
            if isinstance(explained, AccessError):
                raise explained from None
            return str(error)
        return None

    reasons = {path: "not in the list of images" for path in images["path"] if path not in names}
    failed = {path: "" for path in images["path"] if path in names}
    for number in range(1, N_ROUNDS + 1):
        failed = _round(sorted(failed), fetch, what=f"fetching images, round {number}")
        if not failed:
            break
        _LOG.warning("%d images failed in round %d of %d", len(failed), number, N_ROUNDS)
    reasons |= failed
    listed = images.filter(pl.col("path").is_in(list(reasons)))
    return listed.select(
        "sample", "path", reason=pl.col("path").replace_strict(reasons, return_dtype=pl.String)
    ).cast(EXCLUSIONS_SCHEMA)


def _round(
    paths: Sequence[str], fetch: Callable[[str], str | None], *, what: str
) -> dict[str, str]:
    """Fetch all once; return why those failed that did."""
    with ThreadPoolExecutor(max_workers=N_CONNECTIONS) as pool:
        try:
            reasons: Iterable[str | None] = pool.map(fetch, paths)
            shown = progress(reasons, total=len(paths), what=what, unit="images")
            return {path: why for path, why in zip(paths, shown, strict=True) if why is not None}
        except DataError:
            pool.shutdown(cancel_futures=True)
            raise


def _comparison(path: str, digests: Mapping[str, str]) -> Callable[[Path], None]:
    def check(file: Path) -> None:
        expected = digests.get(path)
        if expected is None:
            raise WrongFileError("no SHA-256 is published for it")
        got = sha256_file(file)
        if got != expected:
            raise WrongFileError(f"SHA-256 {got}, expected {expected} as published")

    return check
