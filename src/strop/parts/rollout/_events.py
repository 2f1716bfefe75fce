"""Events without their first tokens, or without the statistics of their draws."""

import math
from collections.abc import Sequence

from strop.engines.base import Event


def without_first(events: Sequence[Event], number: int) -> tuple[Event, ...]:
    """The events without their first tokens; the last one stays, with its end."""
    kept = []
    for place, event in enumerate(events):
        left = min(number, len(event.ids))
        number -= left
        if left < len(event.ids) or place == len(events) - 1:
            kept.append(event.part(left))
    return tuple(kept)


def undrawn(ids: Sequence[int]) -> Event:
    """An answer that no engine drew, in the form of one: nothing is known of its draws."""
    none = (math.nan,) * len(ids)
    return Event(0, tuple(ids), none, -1, none, none, ended="stop")


def void(events: Sequence[Event]) -> list[Event]:
    """The events behind another context, where the statistics of their draws do not hold."""
    none = math.nan
    return [
        e._replace(
            logp=(none,) * len(e.ids), logp_model=(), entropy=(), top=(), kept=(), experts=()
        )
        for e in events
    ]
