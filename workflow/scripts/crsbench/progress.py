"""Progress of long work: a bar on a terminal, plain lines elsewhere."""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")
Advance = Callable[[int], object]

_LOG = logging.getLogger(__name__)
_SECONDS_BETWEEN_LINES = 30.0


def progress(items: Iterable[Item], *, total: int, what: str, unit: str) -> Iterator[Item]:
    """Yield the items, showing how many of `total` are done, the rate and the time left."""
    with meter(total=total, what=what, unit=unit) as advance:
        for item in items:
            yield item
            advance(1)


@contextmanager
def meter(*, total: int, what: str, unit: str) -> Iterator[Advance]:
    """Yield a function that is called with the number of units done since the last call."""
    lines = _Lines(total, what=what, unit=unit)
    if sys.stderr.isatty():
        with tqdm(total=total, desc=what, unit=unit, leave=False) as bar:
            yield bar.update
    else:
        yield lines.advance
    lines.close()


class _Lines:
    """Log a line of progress now and then, and one at the end."""

    def __init__(self, total: int, *, what: str, unit: str) -> None:
        self.total, self.what, self.unit = total, what, unit
        self.done = 0
        self.started = self.shown = time.monotonic()

    def advance(self, n_done: int) -> None:
        self.done += n_done
        now = time.monotonic()
        if now - self.shown >= _SECONDS_BETWEEN_LINES and self.done < self.total:
            self.shown = now
            seconds = now - self.started
            line = progress_line(
                self.done, self.total, seconds=seconds, what=self.what, unit=self.unit
            )
            _LOG.info(line)

    def close(self) -> None:
        seconds = time.monotonic() - self.started
        rate = self.total / seconds if seconds else 0
        line = "%s: %d %s in %.1f s, %.1f/s"
        _LOG.info(line, self.what, self.total, self.unit, seconds, rate)


def progress_line(done: int, total: int, *, seconds: float, what: str, unit: str) -> str:
    """Return one line of progress: share, rate and time left."""
    rate = done / seconds
    left = (total - done) / rate
    return f"{what}: {done}/{total} {unit} ({done / total:.0%}), {rate:.1f}/s, {left:.0f} s left"
