"""A pool of engine workers, each in a process of its own, behind the interface of one engine.

A request goes to the worker with the fewest requests, or to the one that has its neighbour with the
same prompt; one that begins with the tokens of another goes to the worker that holds that. What is
drawn depends on (seed, position, weights) alone, so a request has the same tokens on any worker. A
worker that is lost loses nothing: its open requests are broken off, and begun again behind the
tokens received by another one, or by itself once it is restarted.

`Workers` carries the messages (strop.training.cluster.engine_actors does it over Ray). Among
several training processes the first one sends them, and all receive the same answers in the same
order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from strop.engines.base import WAITING, Engine, Event, Request, Source, taken_out

NOWHERE = -1
NEIGHBOURS = 16  # more requests than the idlest engine has, for one with its neighbour's prompt
AHEAD = 2  # requests that an engine is handed, for each that it can run at once

# What an engine is told: the name of a method of `Engine`, and what that is given.
Order = tuple[Any, ...]


class Facts(NamedTuple):
    """What an engine has. place: of its process, (node, process id)."""

    capabilities: frozenset[str]
    longest: int | None
    num_slots: int
    place: tuple[str, int] = ("", 0)


class Turn(NamedTuple):
    """What an engine brought in a turn: events under the ids of here."""

    events: tuple[Event, ...]
    drafts: tuple[int, int] = (0, 0)


class Lost(NamedTuple):
    """An engine is gone, with all that it had."""

    why: str


class Back(NamedTuple):
    """It is there again, empty, with the newest weights."""


News = Turn | Lost | Back


class Workers(Protocol):
    """Speaks with the engines, which have numbers from 0 on."""

    def facts(self) -> list[Facts]:
        """Of every engine, once it can work. Raises UserError."""
        ...

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        """Let all engines draw with these from their next turns on."""
        ...

    def exchange(
        self, orders: Mapping[int, list[Order]], busy: set[int], wait: float, behind: set[int]
    ) -> list[tuple[int, News]]:
        """Give orders, let the engines with orders or in `busy` work on, and tell what came.

        wait: so many seconds, or until something has come. behind: who draws on with the weights
        that it has. Raises what an engine raised, RunStopped where none is left.
        """
        ...

    def close(self) -> None:
        """End the engines."""
        ...


@dataclass(eq=False)
class Known:
    """A request that waits for an engine, or that one draws or keeps the cache of."""

    id: int
    request: Request
    source: Source = None
    engine: int = NOWHERE


class EnginePool(Engine):
    """The workers' engines as one.

    model: its trained weights are those that are drawn with. first: as Ranks.from_first, what a
    function gives in the process that has the workers. ready: called before the weights are read.
    renews_alone: an engine takes new weights once all that it has begun has ended, whatever others
    do; until then it is handed what goes on from that, and nothing new.
    """

    def __init__(
        self,
        workers: Workers | None,
        model: Any,
        first: Callable[[Callable[[], Any]], Any],
        ready: Callable[[], None] = lambda: None,
        renews_alone: bool = False,
    ) -> None:
        self.renews_alone = renews_alone
        self.workers, self.model, self.first, self.ready = workers, model, first, ready
        facts = first(lambda: self._all_workers.facts())
        self.places = [each.place for each in facts]
        self.capabilities = frozenset.intersection(*(each.capabilities for each in facts))
        self.longest = facts[0].longest
        self.num_slots = facts[0].num_slots
        self.most_requests = (WAITING + AHEAD) * self.num_slots * len(facts)
        self.alive = dict.fromkeys(range(len(facts)), True)
        self.version = 0
        self.lost = 0  # engines, so far
        self.drafted = dict.fromkeys(self.alive, (0, 0))
        self.drafted_before = 0, 0  # by those that were lost
        self.known: dict[int, Known] = {}
        self.queue: list[Known] = []  # for no engine yet
        self.orders: dict[int, list[Order]] = {number: [] for number in self.alive}
        self.open: dict[int, set[int]] = {number: set() for number in self.alive}
        self.events: list[Event] = []
        self.behind: set[int] = set()  # engines that draw to the end with older weights
        self.last: tuple[int, tuple[int, ...]] = (NOWHERE, ())  # who got one last, and its prompt

    @property
    def _all_workers(self) -> Workers:
        assert self.workers is not None, "the first process has the workers"
        return self.workers

    @property
    def drafts(self) -> tuple[int, int]:  # type: ignore[override]
        """Tokens that all engines drafted so far, and those of them that were drawn."""
        made = [self.drafted_before, *self.drafted.values()]
        return sum(all for all, _ in made), sum(drawn for _, drawn in made)

    def start(self, id: int, request: Request, source: Source = None) -> None:
        """Queue a request."""
        self.known[id] = Known(id, request, source)
        self.queue.append(self.known[id])

    def cancel(self, id: int) -> list[Event]:
        """Draw a request no further; once its engine has heard of it, what was not told yet."""
        if (known := self.known.get(id)) is None:
            return []
        if known.engine == NOWHERE:
            self.queue.remove(known)
        else:
            self.orders[known.engine].append(("cancel", id))
            while id in self.open[known.engine]:
                self._exchange()
        self.known.pop(id, None)
        return taken_out(self.events, id)

    def forget(self) -> None:
        """Let the engines know: caches only take room from the update."""
        for orders in self.orders.values():
            orders.append(("forget",))
        self._exchange(wait=0)

    def poll(self, seconds: float | None = None) -> list[Event]:
        """Wait until an engine brings something; what has come."""
        self._hand_out()
        self._exchange(0 if self.events else math.inf if seconds is None else seconds)
        found, self.events = self.events, []
        return found

    def load_weights(self, state: Mapping[str, Any] | None, version: int) -> None:
        """Let all draw with other weights; state None: those of the model, trained here."""
        self.ready()
        own = {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}
        weights = own if state is None else {name: state[name] for name in own}
        self.first(lambda: self._all_workers.publish(weights, version))
        self.version = version
        if self.renews_alone:
            self.behind = set(self.open)
            self._hand_out()
        self._exchange(wait=0)  # so that they come while something else is done

    def close(self) -> None:
        """End the engines."""
        if self.workers is not None:
            self.workers.close()

    # ---- from here on: how

    def _hand_out(self) -> None:
        """Give waiting requests to engines that have room, in the order that they came in."""
        self.queue.sort(key=lambda known: known.id)  # what was broken off before all else
        if self.behind:  # which are so until nothing goes on from what they have begun
            self.queue = [known for known in self.queue if not self._hand_on(known)]
            self.behind = {number for number in self.behind if self.open[number]}
        self.queue = [known for known in self.queue if not self._hand(known)]

    def _hand_on(self, known: Known) -> bool:
        """Give a request to the engine that has its source; False where there is none.

        A request that shares no more than what its source was given goes on from nothing.
        """
        above = None if known.source is None else self.known.get(known.source[0])
        if known.source is None or above is None or known.source[1] <= len(above.request.ids):
            return False
        self._order(known, above.engine, known.source)
        return True

    def _hand(self, known: Known) -> bool:
        """Give a request to an engine; False where none has room."""
        if self._hand_on(known):
            return True
        engine = self._idlest(known.request.ids)
        if engine == NOWHERE:
            return False
        self._order(known, engine, None)
        self.last = engine, known.request.ids
        return True

    def _order(self, known: Known, engine: int, source: Source) -> None:
        known.engine = engine
        self.orders[engine].append(("start", known.id, known.request, source))
        self.open[engine].add(known.id)

    def _idlest(self, ids: tuple[int, ...]) -> int:
        """Who gets a request with this prompt; NOWHERE where nobody has room."""
        loads = {
            number: len(self.open[number])
            for number, up in self.alive.items()
            if up and number not in self.behind
        }
        if not loads:
            return NOWHERE
        least = min(loads, key=lambda number: (loads[number], number))
        engine, before = self.last
        if before == ids and loads.get(engine, 1 << 62) <= loads[least] + NEIGHBOURS:
            least = engine
        return least if loads[least] < AHEAD * self.num_slots else NOWHERE

    def _exchange(self, wait: float = math.inf) -> None:
        """Let the engines work, and take in what came."""
        orders = {number: own for number, own in self.orders.items() if own}
        self.orders = {number: [] for number in self.orders}
        busy = {number for number, ids in self.open.items() if ids}
        behind = self.behind & busy
        for number, news in self.first(
            lambda: self._all_workers.exchange(orders, busy, wait, behind)
        ):
            if isinstance(news, Turn):
                self.drafted[number] = news.drafts
                self._hear(number, news.events)
            elif isinstance(news, Lost):
                self._lose(number)
            else:
                self.alive[number] = True

    def _hear(self, number: int, events: Iterable[Event]) -> None:
        for event in events:
            if (known := self.known.get(event.request)) is None:  # cancelled
                continue
            if event.ended:
                self.open[number].discard(known.id)
                if not (known.request.keep and event.ended in ("stop", "length")):
                    del self.known[known.id]
            self.events.append(event)

    def _lose(self, number: int) -> None:
        """Break off what an engine had."""
        self.alive[number], self.lost = False, self.lost + 1
        self.behind.discard(number)
        for id in sorted(self.open[number]):
            self.events.append(Event(id, (), (), self.version, ended="broken"))
        self.known = {id: known for id, known in self.known.items() if known.engine != number}
        self.orders[number], self.open[number] = [], set()
        (made, drawn), (more, of_them) = self.drafted_before, self.drafted[number]
        self.drafted_before, self.drafted[number] = (made + more, drawn + of_them), (0, 0)
