"""The two errors with a message meant for people instead of a traceback, and a hint for them."""

import difflib
from collections import Counter
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
    """The words ", did you mean a or b?" for the closest known names; empty when none is close.

    Of names that are equally close, those of the same letters come first: letters get swapped.
    """
    words = list(known)

    def likeness(word: str) -> tuple[float, int]:
        order = difflib.SequenceMatcher(None, word, name).ratio()
        return order, (Counter(word) & Counter(name)).total()

    close = difflib.get_close_matches(name, words, n=max(len(words), 1), cutoff=0.5)
    best = sorted(close, key=likeness, reverse=True)[:3]
    return f", did you mean {' or '.join(best)}?" if best else ""
