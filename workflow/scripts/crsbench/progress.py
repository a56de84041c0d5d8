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
def meter(*, total: int | None, what: str, unit: str, before: int = 0) -> Iterator[Advance]:
    """Yield a function that is called with the number of units done since the last call.

    Parameters
    ----------
    total
        How many units there are; None where nobody knows.
    what, unit
        What is done, and what is counted.
    before
        How many were done in an earlier try; they do not count for the rate.
    """
    lines = _Lines(total, what=what, unit=unit, before=before)
    if sys.stderr.isatty():
        with tqdm(total=total, initial=before, desc=what, unit=unit, leave=False) as bar:
            yield bar.update
            lines.done = int(bar.n)
    else:
        yield lines.advance
    lines.close()


class _Lines:
    """Log a line of progress now and then, and one at the end."""

    def __init__(self, total: int | None, *, what: str, unit: str, before: int) -> None:
        self.total, self.what, self.unit = total, what, unit
        self.done = self.before = before
        self.started = self.shown = time.monotonic()

    def advance(self, n_done: int) -> None:
        self.done += n_done
        now = time.monotonic()
        if now - self.shown >= _SECONDS_BETWEEN_LINES and self.done != self.total:
            self.shown = now
            _LOG.info(
                progress_line(
                    self.done,
                    self.total,
                    seconds=now - self.started,
                    what=self.what,
                    unit=self.unit,
                    before=self.before,
                )
            )

    def close(self) -> None:
        seconds = time.monotonic() - self.started
        n_done = self.done if self.total is None else self.total
        rate = (n_done - self.before) / seconds if seconds else 0
        line = "%s: %d %s in %.1f s, %.1f/s"
        _LOG.info(line, self.what, n_done - self.before, self.unit, seconds, rate)


def progress_line(
    done: int, total: int | None, *, seconds: float, what: str, unit: str, before: int = 0
) -> str:
    """Return one line of progress: share, rate and time left, as far as they are known."""
    rate = (done - before) / seconds
    if total is None:
        return f"{what}: {done} {unit}, {rate:.1f}/s"
    left = f"{(total - done) / rate:.0f} s left" if rate else "time left unknown"
    return f"{what}: {done}/{total} {unit} ({done / total:.0%}), {rate:.1f}/s, {left}"
