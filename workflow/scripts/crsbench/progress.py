"""Progress of long work: a bar on a terminal, plain lines elsewhere."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")
_LOG = logging.getLogger(__name__)
_SECONDS_BETWEEN_LINES = 30.0


def progress(items: Iterable[Item], *, total: int, what: str, unit: str) -> Iterator[Item]:
    """Yield the items, showing how many of `total` are done, the rate and the time left."""
    if sys.stderr.isatty():
        yield from tqdm(items, total=total, desc=what, unit=unit, leave=False)
    else:
        yield from _with_lines(items, total=total, what=what, unit=unit)


def _with_lines(items: Iterable[Item], *, total: int, what: str, unit: str) -> Iterator[Item]:
    started = shown = time.monotonic()
    done = 0
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - shown >= _SECONDS_BETWEEN_LINES and done < total:
            shown = now
            _LOG.info(progress_line(done, total, seconds=now - started, what=what, unit=unit))
    seconds = time.monotonic() - started
    _LOG.info("%s: %d %s in %.1f s", what, done, unit, seconds)


def progress_line(done: int, total: int, *, seconds: float, what: str, unit: str) -> str:
    """Return one line of progress: share, rate and time left."""
    rate = done / seconds
    left = (total - done) / rate
    return f"{what}: {done}/{total} {unit} ({done / total:.0%}), {rate:.1f}/s, {left:.0f} s left"
