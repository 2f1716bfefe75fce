"""The side of a fleet's engine: takes orders about requests by their ids there, works in turns."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from strop.rollout.engines.base import Engine, Event
from strop.rollout.engines.fleet import Order, Turn

TURN_SECONDS = 0.2  # after which a turn ends though nothing has come


class Turns:
    """An engine that does what it is told, and brings its events under the ids of who tells it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.ids: dict[int, int] = {}  # there -> here
        self.names: dict[int, int] = {}  # here -> there
        self.told: dict[int, int] = {}  # events that were brought of each, by its id there

    def turn(self, orders: Iterable[Order]) -> Turn:
        """Obey, then work until something comes, or for a while."""
        events: list[Event] = []
        for order in orders:
            events += self._obey(*order)
        begun = time.monotonic()
        while self.engine.busy() and not events and time.monotonic() - begun < TURN_SECONDS:
            for event in self.engine.step():
                name = self.names[event.request]
                self.told[name] += 1
                events.append(event._replace(request=name))
        return Turn(tuple(events), self.engine.drafts)

    def clear(self) -> None:
        """Forget all requests."""
        for name in list(self.ids):
            self._obey("abort", name)
            self._obey("release", name)

    def _obey(self, what: str, name: int, *more: Any) -> list[Event]:
        if what == "submit":
            self._keep(name, self.engine.submit(*more))
        elif what == "fork":
            parent, at, forced, changes = more
            self._keep(name, self.engine.fork(self.ids[parent], at, forced, **changes))
        elif what == "resume":
            self.engine.resume(self.ids[name], **more[0])
        elif what == "abort":
            new = self.engine.abort(self.ids[name]).events[self.told[name] :]
            self.told[name] += len(new)
            return [event._replace(request=name) for event in new]
        else:
            own = self.ids.pop(name)
            del self.names[own], self.told[name]
            self.engine.release(own)
        return []

    def _keep(self, name: int, own: int) -> None:
        self.ids[name], self.names[own], self.told[name] = own, name, 0
