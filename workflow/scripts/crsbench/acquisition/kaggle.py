"""A competition's files through Kaggle's own client, which knows its account and its rules.

The client is a program that is called, not a library: importing it looks for credentials and may
end the process. It takes them from ``~/.kaggle/kaggle.json`` or the environment; nothing of them
passes through here.
"""

import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from crsbench.errors import DataError
from crsbench.redaction import redacted

_LOG = logging.getLogger(__name__)
TIMEOUT_S = 24 * 3600.0

_REFUSED = re.compile(r"\b403\b|forbidden|accept this competition", re.IGNORECASE)
_UNKNOWN = re.compile(
    r"\b401\b|unauthori[sz]ed|could not find kaggle\.json|authenticat|credentials", re.IGNORECASE
)


def download_competition(competition: str, folder: Path, *, timeout_s: float = TIMEOUT_S) -> Path:
    """Let the client fetch all files of a competition, as one archive.

    Returns
    -------
    Path
        ``{competition}.zip`` in the folder.

    Raises
    ------
    DataError
        The client is not installed, has no credentials, is refused, or failed otherwise.
    """
    command = [
        _find_client(), "competitions", "download", "-c", competition, "-p", str(folder), "-q",
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    _LOG.info("calling the Kaggle client for %s; it shows no progress here", competition)
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DataError(
            f"the Kaggle client has not ended within {timeout_s:.0f} s; run again to go on"
        ) from None
    archive = folder / f"{competition}.zip"
    # The client has ended with 0 after a refusal before.
    if ended.returncode != 0 or not archive.is_file():
        raise DataError(_explain(" ".join(redacted(ended.stdout).split()), competition))
    return archive


def _find_client() -> str:
    """Return the client beside this Python, or the one on the path."""
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    found = shutil.which("kaggle", path=os.pathsep.join(places))
    if found is None:
        raise DataError(
            "the Kaggle client is not installed; install it (pip install kaggle) into the "
            "environment of the workflow, or get the files by hand"
        )
    return found


def _explain(said: str, competition: str) -> str:
    page = f"https://www.kaggle.com/competitions/{competition}"
    if _REFUSED.search(said):
        return (
            f"Kaggle refused (403): the rules of the competition are not accepted, or the phone "
            f"number of the account is not verified; accept them at {page}/rules (for a closed "
            f"competition by Late Submission), verify the number at "
            f"https://www.kaggle.com/settings, and run again. The client said: {said}"
        )
    if _UNKNOWN.search(said):
        return (
            "Kaggle does not know the account (401): create an API token at "
            "https://www.kaggle.com/settings and save it as ~/.kaggle/kaggle.json (chmod 600), or "
            f"set KAGGLE_USERNAME and KAGGLE_KEY; then run again. The client said: {said}"
        )
    return f"the Kaggle client failed; run again, or get the files by hand. It said: {said}"
