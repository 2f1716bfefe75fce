"""The two errors with a message meant for people instead of a traceback, and a hint for them."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what the user gave; the message says what, where and what to do.

    The command line prints the message on one line and exits with code 2, without a traceback.
    """


class RunStopped(RuntimeError):
    """A run cannot go on (full disk, gradient that is not finite); the last checkpoint is good.

    The command line prints the message and how to resume, and exits with code 1.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """The words ", did you mean a or b?" for the closest known names; empty when none is close."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f", did you mean {' or '.join(close)}?" if close else ""
