"""Seconds: of one call, the least of some calls, and medians of calls that take turns."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Return the seconds that something takes, and what it returns."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def least(work: Callable[[], object], *, rounds: int = 5) -> float:
    """Return the shortest of some times: what the machine can do when left alone."""
    return min(timed(work)[0] for _ in range(rounds))


def medians(works: Sequence[Callable[[], float]], *, rounds: int) -> list[float]:
    """Return the median of each of some works that return their own seconds; they take turns."""
    turns = [[work() for work in works] for _ in range(rounds)]
    return [statistics.median(seconds) for seconds in zip(*turns, strict=True)]
