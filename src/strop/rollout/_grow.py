"""Answers that grow out of each other: starting them, waiting for them, cutting what they said."""

from collections.abc import Sequence
from itertools import chain

from strop.rollout.commands import Command, Strategy
from strop.rollout.engines.base import Event


def started(commands: Sequence[Command]) -> Strategy:
    """Give commands that each begin a request; returns the requests' numbers and their events."""
    if not commands:
        return []
    numbers, events = yield list(commands)
    heard: dict[int, list[Event]] = {number: [] for number in numbers}
    running = set(numbers)
    while running:
        for event in events:
            heard[event.request].append(event)
            if event.ended:
                running.discard(event.request)
        if running:
            _, events = yield []
    return list(zip(numbers, (tuple(heard[number]) for number in numbers), strict=True))


def first_tokens(events: Sequence[Event], number: int) -> tuple[Event, ...]:
    """The events of the first tokens only, none of them an end."""
    kept = []
    for event in events:
        size = min(number, len(event.ids))
        number -= size
        if size:
            cut = event._replace(
                ids=event.ids[:size],
                logp=event.logp[:size],
                logp_model=event.logp_model[:size],
                entropy=event.entropy[:size],
                top=event.top[:size],
                ended="",
            )
            kept.append(cut)
    return tuple(kept)


def tokens_of(events: Sequence[Event]) -> tuple[int, ...]:
    """New tokens of a request."""
    return tuple(chain.from_iterable(event.ids for event in events))
