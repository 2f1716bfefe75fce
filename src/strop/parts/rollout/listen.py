"""Conversations with an engine: begin requests, hear each to its end, begin what follows."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from strop.engines.base import Event, Request
from strop.parts.rollout.commands import Command, Fork, Resume, Strategy, Submit

Start = Submit | Fork


class Heard(NamedTuple):
    """A request by its number, and its events so far."""

    number: int
    events: list[Event]


def nothing(ended: Mapping[Any, Heard]) -> Mapping[Any, Start]:
    """Nothing follows."""
    return {}


def converse(
    starts: Mapping[Any, Start],
    follow: Callable[[Mapping[Any, Heard]], Mapping[Any, Start]] = nothing,
) -> Strategy:
    """Begin requests under keys and hear all to their ends; returns key -> Heard.

    follow: told what has ended, all at once; gives what is begun next, under old keys or new ones.
    A key stands for its latest request. A request that pauses is resumed as it is.
    """
    heard: dict[Any, Heard] = {}
    running: dict[int, Any] = {}
    resumed: list[Command] = []
    while starts or running:
        answers, events = yield [*starts.values(), *resumed]
        for key, number in zip(starts, answers, strict=False):  # a Resume has no answer
            heard[key], running[number] = Heard(number, []), key
        ended: dict[Any, Heard] = {}
        resumed = []
        for event in events:
            key = running[event.request]
            heard[key].events.append(event)
            if event.ended == "paused":
                resumed.append(Resume(event.request))
            elif event.ended:
                ended[running.pop(event.request)] = heard[key]
        starts = follow(ended) if ended else {}
    return heard


def hear(starts: Sequence[Start]) -> Strategy:
    """Begin all requests at once; returns each one's Heard, in the order of `starts`."""
    heard = yield from converse(dict(enumerate(starts)))
    return list(heard.values())


def listen(requests: Sequence[Request]) -> Strategy:
    """Submit all requests at once; returns the events of each, in the order of the requests."""
    heard = yield from hear([Submit(request) for request in requests])
    return [each.events for each in heard]


def seeded(start: Start, seed: int) -> Start:
    """The same request with draws of its own."""
    if isinstance(start, Fork):
        return replace(start, changes={**start.changes, "seed": seed})
    return replace(start, request=replace(start.request, seed=seed))


Inbox = dict[int, list[Event]]


def tell(commands: Sequence[Command], inbox: Inbox) -> Strategy:
    """Give commands, and keep the events that have come by request; returns the answers."""
    if not commands:
        return []
    answers, events = yield [*commands]
    for event in events:
        inbox.setdefault(event.request, []).append(event)
    return answers


def wait(numbers: Sequence[int], inbox: Inbox) -> Strategy:
    """Keep events until these requests have paused or ended since theirs were last taken out."""
    while any(not inbox.get(n) or not inbox[n][-1].ended for n in numbers):
        _, events = yield []
        for event in events:
            inbox.setdefault(event.request, []).append(event)


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


def without_first(events: Sequence[Event], number: int) -> tuple[Event, ...]:
    """The events without their first tokens; the last one stays, with its end."""
    kept = []
    for place, event in enumerate(events):
        left = min(number, len(event.ids))
        number -= left
        if left < len(event.ids) or place == len(events) - 1:
            cut = event._replace(
                ids=event.ids[left:],
                logp=event.logp[left:],
                logp_model=event.logp_model[left:],
                entropy=event.entropy[left:],
                top=event.top[left:],
            )
            kept.append(cut)
    return tuple(kept)


def void(events: Sequence[Event]) -> list[Event]:
    """The events where another context stands before them: nothing is known of their draws."""
    none = math.nan
    return [
        e._replace(logp=(none,) * len(e.ids), logp_model=(), entropy=(), top=()) for e in events
    ]
