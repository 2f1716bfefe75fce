"""Sentences about names that are not there."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the nearest known name, or an empty text when none is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""


def nearest_first(name: str, known: Iterable[str], limit: int = 8) -> str:
    """The known names, the nearest to `name` first, as one line of at most `limit` names."""
    names = sorted(
        known, key=lambda other: (-difflib.SequenceMatcher(None, name, other).ratio(), other)
    )
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more if names else "none"
