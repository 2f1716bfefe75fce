"""The plainest conversations with an engine: begin requests and hear each to its end."""

from collections.abc import Sequence

from strop.rollout.commands import Command, Fork, Resume, Strategy, Submit
from strop.rollout.engines.base import Event, Request


def listen(requests: Sequence[Request]) -> Strategy:
    """Submit all requests at once; returns the events of each, in the order of the requests."""
    heard = yield from hear([Submit(request) for request in requests])
    return list(heard.values())


def hear(starts: Sequence[Submit | Fork]) -> Strategy:
    """Begin all requests at once; returns id -> events, in the order of `starts`.

    A request that pauses is resumed as it is.
    """
    numbers, events = yield list(starts)
    heard: dict[int, list[Event]] = {number: [] for number in numbers}
    running = set(numbers)
    while running:
        commands: list[Command] = []
        for event in events:
            heard[event.request].append(event)
            if event.ended == "paused":
                commands.append(Resume(event.request))
            elif event.ended:
                running.discard(event.request)
        if running:
            _, events = yield commands
    return heard
