"""The plainest conversation with an engine: submit requests and hear each to its end."""

from collections.abc import Sequence

from strop.rollout.commands import Strategy, Submit
from strop.rollout.engines.base import Event, Request


def listen(requests: Sequence[Request]) -> Strategy:
    """Submit all requests at once; returns the events of each, in the order of the requests."""
    numbers, events = yield [Submit(request) for request in requests]
    heard: dict[int, list[Event]] = {number: [] for number in numbers}
    running = set(numbers)
    while running:
        for event in events:
            heard[event.request].append(event)
            if event.ended:
                running.discard(event.request)
        if running:
            _, events = yield []
    return [heard[number] for number in numbers]
