"""One engine in each of several processes, behind the interface of one; they split the requests.

Every process runs the same strategies and gives the same commands. A process draws the answers of
its own share of the requests; then all gather the answers of the others. What is drawn depends on
(seed, position, weights) alone, so the answers are those of one engine. Events come when all that
runs has ended. Where that is too late, because a strategy ends answers on the way,
`dealing` is off: every process draws all.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from strop.engines.base import Answer, Engine, Event, Request, Source

EVERYONE = -1


@dataclass
class Known:
    """A request. owner: the process that draws it, None until it is dealt. inner: its id there."""

    request: Request
    source: Source = None
    owner: int | None = None
    inner: int = -1
    ended: bool = False
    events: list[Event] = field(default_factory=list)

    def hear(self, event: Event) -> None:
        """Keep an event of its own."""
        self.events.append(event)
        self.ended = bool(event.ended)


class ParallelEngine(Engine):
    """`inner` of this process, its requests shared with the others' by `ranks`.

    shell: puts the newest weights into the model that `inner` samples with.
    """

    lockstep = True

    def __init__(self, inner: Engine, ranks: Any, shell: Any) -> None:
        self.inner, self.ranks, self.shell = inner, ranks, shell
        self.capabilities = getattr(inner, "capabilities", frozenset())
        self.dealing = True
        self.known: dict[int, Known] = {}
        self.next_id = 0
        self.queue: list[int] = []  # to begin
        self.global_id: dict[int, int] = {}  # by the inner engine's

    @property
    def version(self) -> int:  # type: ignore[override]
        """Of the weights that sample now."""
        return self.inner.version

    @property
    def drafts(self) -> tuple[int, int]:  # type: ignore[override]
        """Of this process: tokens that were drafted so far, and those that were drawn."""
        return self.inner.drafts

    def submit(self, request: Request, source: Source = None) -> int:
        """Queue a request and return its id."""
        id, self.next_id = self.next_id, self.next_id + 1
        self.known[id] = Known(request, source)
        self.queue.append(id)
        return id

    def abort(self, id: int) -> Answer:
        """End a request now; its last event (ended "aborted") is in the answer."""
        known = self.known[id]
        if not known.ended:
            if id in self.queue:
                self.queue.remove(id)
            last = Event(id, (), (), self.version, ended="aborted")
            if known.inner >= 0:
                own = self.inner.abort(known.inner).events[-1]
                if known.owner == EVERYONE:
                    last = own._replace(request=id)
            known.hear(last)
        return Answer(known.request, tuple(known.events))

    def release(self, id: int) -> None:
        """Forget a request: its tokens, its events, and its cache where it was drawn."""
        self.abort(id)
        known = self.known.pop(id)
        if known.inner >= 0:
            del self.global_id[known.inner]
            self.inner.release(known.inner)

    def forget(self) -> None:
        """Let go of what only speeds requests up."""
        self.inner.forget()

    def busy(self) -> bool:
        """True while a step can bring something; the same in all processes."""
        return any(not known.ended for known in self.known.values())

    def step(self) -> list[Event]:
        """Run to where all have ended, and tell; or one step of all, not `dealing`."""
        self.shell.whole()
        queue, self.queue = self.queue, []
        if not self.dealing:
            for id in queue:
                self._begin(id, EVERYONE)
            told = self._own(self.inner.step()) if self.inner.busy() else []
        else:
            owners = self._deal(queue)
            for id, owner in owners.items():
                self.known[id].owner = owner
            own = [id for id in queue if owners[id] == self.ranks.number]
            told = [event for each in self.ranks.gathered(self._run(own)) for event in each]
            told.sort(key=lambda event: event.request)
        for event in told:
            self.known[event.request].hear(event)
        return told

    def _deal(self, queue: list[int]) -> dict[int, int]:
        """Who draws what: neighbours together, which share a prompt; what goes on from a request
        beside that.
        """
        owners: dict[int, int] = {}
        fresh = [id for id in queue if self._source(id) is None]
        costs = [self.known[id].request.max_tokens for id in fresh]
        total, before = sum(costs), 0
        for id, cost in zip(fresh, costs, strict=True):
            owners[id] = min((2 * before + cost) * self.ranks.count // (2 * total), self.last)
            before += cost
        for id in queue:
            if (source := self._source(id)) is not None:
                above = source.owner
                assert above is not None, "what is told of has an owner"
                owners[id] = above
        return owners

    def _source(self, id: int) -> Known | None:
        """The request whose beginning another one has, where it is there."""
        source = self.known[id].source
        return None if source is None else self.known.get(source[0])

    @property
    def last(self) -> int:
        """Number of the last process."""
        return int(self.ranks.count) - 1

    def _run(self, queue: list[int]) -> list[Event]:
        """Draw these until each has ended; their events."""
        events: list[Event] = []
        open, waiting = set(queue), list(reversed(queue))
        while open:
            while waiting and not self.inner.full():
                self._begin(waiting.pop(), self.ranks.number)
            new = self._own(self.inner.step())
            open -= {event.request for event in new if event.ended}
            events += new
        return events

    def _begin(self, id: int, owner: int) -> None:
        """Hand a request to the inner engine."""
        known, source = self.known[id], self._source(id)
        known.owner = owner
        inner = None
        if source is not None and known.source is not None and source.inner >= 0:
            inner = source.inner, known.source[1]
        known.inner = self.inner.submit(known.request, inner)
        self.global_id[known.inner] = id

    def _own(self, events: list[Event]) -> list[Event]:
        """The inner engine's events under the ids of here."""
        known = self.global_id
        return [e._replace(request=known[e.request]) for e in events if e.request in known]

    def load_weights(self, state: Any, version: int) -> None:
        """Sample with other weights from the next token on; state None: those that are trained."""
        self.shell.whole()
        self.inner.load_weights(state, version)

    def newest(self) -> AbstractContextManager[None]:
        """Inside, samples are drawn with the newest weights."""
        return self.inner.newest()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold beside the newest weights."""
        return self.inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], version: int) -> None:
        """Go on from a checkpoint: the model has its weights by now."""
        self.shell.whole()
        self.inner.load_state_dict(state, version)

    def close(self) -> None:
        """Let go of what the inner engine holds."""
        self.inner.close()
