"""Errors that a user can act on.

The message is one line that says what is wrong, where (file, row, key), what was got and
expected, and what to do next. Anything else that is raised is a fault of this program.
"""


class CrsBenchError(Exception):
    """Base of all errors that a user's input can cause."""


class ConfigError(CrsBenchError):
    """The configuration or a definition is wrong; nothing has been run."""


class DataError(CrsBenchError):
    """Images, labels or an intermediate table are missing, damaged or contradictory."""


class WeightsError(CrsBenchError):
    """The weights of an encoder are missing, gated, or not those that its card declares."""
