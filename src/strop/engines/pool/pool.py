"""A pool of engine workers, each in a separate process, behind the interface of one engine.

A request goes to the worker with the fewest requests, or to the one that has its neighbour with the
same prompt; a request that begins with the tokens of another goes to the worker that has its cache.
A token depends on (seed, position, weights) alone, so a request has the same tokens on any worker.
A lost worker loses nothing: its open requests are restarted after the tokens received so far, on
another worker, or on itself once it is restarted.

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
from strop.engines.local.causal import load_state

NOWHERE = -1
NEIGHBOURS = 16  # surplus over the idlest engine up to which a neighbour's prompt decides
AHEAD = 2  # requests that an engine is given, for each that it can run at a time

# An order to an engine: the name of a method of `Engine`, and its arguments.
Order = tuple[Any, ...]


class Facts(NamedTuple):
    """The properties of an engine. place: that of its process, (node, process id). notes: those
    for the user.
    """

    capabilities: frozenset[str]
    longest: int | None
    num_slots: int
    place: tuple[str, int] = ("", 0)
    notes: tuple[str, ...] = ()


class Turn(NamedTuple):
    """The result of an engine's turn: events under the pool's request ids."""

    events: tuple[Event, ...]
    drafts: tuple[int, int] = (0, 0)


class Lost(NamedTuple):
    """An engine is lost, with all its requests and caches."""

    why: str


class Back(NamedTuple):
    """An engine is restarted: empty, with the newest weights."""


News = Turn | Lost | Back


class Workers(Protocol):
    """Communicates with the engines, which are numbered from 0."""

    def facts(self) -> list[Facts]:
        """The facts of every engine, once all are ready. Raises UserError."""
        ...

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        """Let all engines sample with these weights from their next turns on."""
        ...

    def exchange(
        self, orders: Mapping[int, list[Order]], busy: set[int], wait: float, behind: set[int]
    ) -> list[tuple[int, News]]:
        """Give orders, let the engines with orders or in `busy` work, and return their news.

        wait: most seconds to wait for news. behind: engines that keep their current weights. Raises
        an engine's error, and RunStopped where no engine is left.
        """
        ...

    def close(self) -> None:
        """End the engines."""
        ...


@dataclass(eq=False)
class Known:
    """A request that waits for an engine, runs on one, or whose cache one keeps."""

    id: int
    request: Request
    source: Source = None
    engine: int = NOWHERE


class EnginePool(Engine):
    """The workers' engines as one.

    model: its trained weights are the sampling weights. first: like Ranks.from_first, calls a
    function in the process that has the workers. renews_alone: an engine takes new weights once all
    its requests have ended, whatever the others do; until then it gets requests that continue
    those, and no new ones.

    shell: puts the newest weights into the model, where shards are trained.
    """

    def __init__(
        self,
        workers: Workers | None,
        model: Any,
        first: Callable[[Callable[[], Any]], Any],
        renews_alone: bool = False,
    ) -> None:
        self.renews_alone = renews_alone
        self.workers, self.model, self.first = workers, model, first
        self.shell: Any = None
        facts = first(lambda: self._all_workers.facts())
        self.places = [each.place for each in facts]
        self.capabilities = frozenset.intersection(*(each.capabilities for each in facts))
        self.notes = tuple(dict.fromkeys(note for each in facts for note in each.notes))
        self.longest = min((each.longest for each in facts if each.longest), default=None)
        self.num_slots = facts[0].num_slots
        self.most_requests = (WAITING + AHEAD) * self.num_slots * len(facts)
        self.alive = dict.fromkeys(range(len(facts)), True)
        self.version = 0
        self.lost = 0  # number of lost engines so far
        self.drafted = dict.fromkeys(self.alive, (0, 0))
        self.drafted_before = 0, 0  # by lost engines
        self.known: dict[int, Known] = {}
        self.queue: list[Known] = []  # requests without an engine yet
        self.orders: dict[int, list[Order]] = {number: [] for number in self.alive}
        self.open: dict[int, set[int]] = {number: set() for number in self.alive}
        self.events: list[Event] = []
        self.behind: set[int] = set()  # engines that finish their requests with older weights
        self.last: tuple[int, tuple[int, ...]] = (NOWHERE, ())  # engine and prompt of the last one

    @property
    def _all_workers(self) -> Workers:
        assert self.workers is not None, "the first process has the workers"
        return self.workers

    @property
    def drafts(self) -> tuple[int, int]:  # type: ignore[override]
        """Numbers of drafted and of accepted tokens of all engines so far."""
        made = [self.drafted_before, *self.drafted.values()]
        return sum(all for all, _ in made), sum(drawn for _, drawn in made)

    def start(self, id: int, request: Request, source: Source = None) -> None:
        """Queue a request."""
        self.known[id] = Known(id, request, source)
        self.queue.append(self.known[id])

    def cancel(self, id: int) -> list[Event]:
        """Stop a request; once its engine has stopped, returns its events not reported yet."""
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
        """Tell the engines to free their caches, which take room from the update."""
        for orders in self.orders.values():
            orders.append(("forget",))
        self._exchange(wait=0)

    def poll(self, seconds: float | None = None) -> list[Event]:
        """Wait until an engine has news; returns the events that have come."""
        self._hand_out()
        self._exchange(0 if self.events else math.inf if seconds is None else seconds)
        found, self.events = self.events, []
        return found

    def load_weights(self, state: Mapping[str, Any] | None, version: int) -> None:
        """Let all engines sample with other weights; state: put into the model first, which parts
        score with; None: those of the trained model.
        """
        if self.shell is not None:
            self.shell.whole()
        if state is not None:
            load_state(self.model, state)
        own = {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}
        self.first(lambda: self._all_workers.publish(own, version))
        self.version = version
        if self.renews_alone:
            self.behind = set(self.open)
            self._hand_out()
        self._exchange(wait=0)  # so that they load while this process does other work

    def close(self) -> None:
        """End the engines."""
        if self.workers is not None:
            self.workers.close()

    # ---- implementation

    def _hand_out(self) -> None:
        """Give waiting requests to engines that have room, in the order in which they came."""
        self.queue.sort(key=lambda known: known.id)  # requests of lost engines come first
        if self.behind:  # an engine stays behind until no request continues one of its own
            self.queue = [known for known in self.queue if not self._hand_on(known)]
            self.behind = {number for number in self.behind if self.open[number]}
        self.queue = [known for known in self.queue if not self._hand(known)]

    def _hand_on(self, known: Known) -> bool:
        """Give a request to the engine that has its source; False where there is none.

        A request that shares no more than its source's prompt does not count as a continuation.
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
        """The engine for a request with this prompt; NOWHERE where none has room."""
        loads = {
            number: len(self.open[number])
            for number, up in self.alive.items()
            if up and number not in self.behind
        }
        if not loads:
            return NOWHERE
        room = AHEAD * self.num_slots
        least = min(loads, key=lambda number: (loads[number], number))
        engine, before = self.last
        surplus = loads.get(engine, room) - loads[least]
        if before == ids and surplus <= min(NEIGHBOURS, self.num_slots):
            least = engine if loads.get(engine, room) < room else least
        return least if loads[least] < room else NOWHERE

    def _exchange(self, wait: float = math.inf) -> None:
        """Let the engines work, and process their news."""
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
        """Mark an engine as lost, and restart its requests."""
        self.alive[number], self.lost = False, self.lost + 1
        self.behind.discard(number)
        for id in sorted(self.open[number]):
            self.events.append(Event(id, (), (), self.version, ended="broken"))
        self.known = {id: known for id, known in self.known.items() if known.engine != number}
        self.orders[number], self.open[number] = [], set()
        (made, drawn), (more, of_them) = self.drafted_before, self.drafted[number]
        self.drafted_before, self.drafted[number] = (made + more, drawn + of_them), (0, 0)
