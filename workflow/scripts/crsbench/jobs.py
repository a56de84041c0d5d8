"""What every job of the workflow has: a log with its traceback, a thread limit, provenance.

A log mirrors its output's path and holds what the library logs, warnings, and the traceback of a
failure; the terminal gets one line. Machine, time and duration stand in ``provenance/*.json``,
not in results: those are the same on every machine. Secrets of links stand in neither.
"""

import json
import logging
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from crsbench import __version__
from crsbench.errors import CrsBenchError
from crsbench.files import write_json
from crsbench.provenance import running_digest
from crsbench.redaction import redacted

_LOG = logging.getLogger(__name__)
_RECORDED_PACKAGES = (
    "imagehash", "numpy", "pillow", "polars", "scikit-learn", "scipy", "snakemake", "timm", "torch",
)  # fmt: skip


@contextmanager
def job(snakemake: Any) -> Iterator[dict[str, str]]:
    """Run the body of a script as a job of the workflow.

    Parameters
    ----------
    snakemake
        The object that Snakemake hands to a script. Its log must be named: ``job`` (text) and
        ``provenance`` (JSON).

    Yields
    ------
    dict
        What the script enters here stands in the provenance as well. The digest of the code that
        runs stands there from the start, as ``code_digest``, if the job has a param ``code``.

    Raises
    ------
    SystemExit
        With status 1 after any failure; the log then holds the traceback.
    """
    _start_log(Path(snakemake.log.job))
    started = datetime.now(UTC)
    clock = time.monotonic()
    noted: dict[str, str] = {}
    try:
        if code := snakemake.params.get("code"):
            noted["code_digest"] = running_digest(code, store=snakemake.config["store"])
        with threadpool_limits(limits=snakemake.threads):
            yield noted
    except CrsBenchError as error:
        _fail(snakemake, str(error))
    except Exception as error:  # noqa: BLE001 - the traceback goes to the log, the status to Snakemake
        _fail(snakemake, f"{type(error).__name__}: {error}")
    write_json(
        _provenance(snakemake, started=started, seconds=time.monotonic() - clock) | noted,
        snakemake.log.provenance,
    )


def _start_log(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    in_file = logging.FileHandler(path, mode="w", encoding="utf-8")
    in_file.setFormatter(_Redacting("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    on_terminal = logging.StreamHandler()
    on_terminal.setFormatter(_Redacting())
    on_terminal.setLevel(logging.WARNING)
    on_terminal.addFilter(lambda record: not getattr(record, "only_in_file", False))
    logging.basicConfig(level=logging.INFO, handlers=[in_file, on_terminal], force=True)
    logging.captureWarnings(True)


class _Redacting(logging.Formatter):
    """Formats a record, its traceback included, without secrets of links."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


def _fail(snakemake: Any, message: str) -> None:
    message = redacted(message)
    _LOG.error("%s", message, extra={"only_in_file": True})
    _LOG.info("which was raised so:", exc_info=True)  # apart, so that a reason ends where it ends
    sys.stderr.write(f"crsbench: {snakemake.rule}: {message}\n  log: {snakemake.log.job}\n")
    logging.shutdown()
    raise SystemExit(1)


def _provenance(snakemake: Any, *, started: datetime, seconds: float) -> dict[str, Any]:
    return {
        "rule": snakemake.rule,
        "wildcards": dict(snakemake.wildcards.items()),
        "params": json.loads(redacted(json.dumps(dict(snakemake.params.items()), default=str))),
        "outputs": list(snakemake.output),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "threads": snakemake.threads,
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "crsbench": __version__,
        "packages": {name: version(name) for name in _RECORDED_PACKAGES},
    }
