"""Errors that a user can act on.

The message is one line that says what is wrong, where (file, row, key), what was got and
expected, and what to do next. Anything else that is raised is a fault of this program.
"""

from collections.abc import Sequence


class CrsBenchError(Exception):
    """Base of all errors that a user's input can cause."""


class ConfigError(CrsBenchError):
    """The configuration or a definition is wrong; nothing has been run."""


class DataError(CrsBenchError):
    """Images, labels or an intermediate table are missing, damaged or contradictory."""


class WeightsError(CrsBenchError):
    """The weights of an encoder are missing, gated, or not those that its card declares."""


def listed(items: Sequence[object], n_shown: int = 5, *, between: str = ", ") -> str:
    """Return the first items as one text that says how many more there are.

    Parameters
    ----------
    items
        What a message is about, in an order that does not change from run to run.
    n_shown
        How many of them are written out.
    between
        What stands between two items; ``"; "`` where they hold commas.
    """
    more = [f"and {len(items) - n_shown} more"] if len(items) > n_shown else []
    text = between.join(map(str, items[:n_shown]))
    return (" " if between == ", " else between).join([text, *more])
