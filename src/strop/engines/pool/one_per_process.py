"""One engine in each of several processes, behind the interface of one; they split the requests.

Every process runs the same strategies and gives the same commands. A process draws the answers of
its own share of the requests; then all gather the answers of the others. What is drawn depends on
(seed, position, weights) alone, so the answers are those of one engine. Events come when all that
runs has ended or paused. Where that is too late, because a strategy ends answers on the way,
`dealing` is off: every process draws all.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from strop.engines.base import Engine, Event, Finished, Request, forked, resumed

EVERYONE = -1


@dataclass
class Known:
    """A request. owner: the process that draws it, None until it is dealt. inner: its id there."""

    request: Request
    parent: tuple[int, int, tuple[int, ...], dict[str, Any]] | None = None  # a fork, as asked for
    owner: int | None = None
    inner: int = -1
    status: str = "running"  # or paused, or ended
    events: list[Event] = field(default_factory=list)

    def hear(self, event: Event) -> None:
        """Keep an event of its own."""
        self.events.append(event)
        if event.ended:
            self.status = "paused" if event.ended == "paused" else "ended"

    @property
    def tokens(self) -> list[int]:
        """Prompt and new tokens by now."""
        return [*self.request.ids, *(id for event in self.events for id in event.ids)]


class ParallelEngine(Engine):
    """`inner` of this process, its requests shared with the others' by `ranks`.

    shell: puts the newest weights into the model that `inner` samples with.
    """

    def __init__(self, inner: Engine, ranks: Any, shell: Any) -> None:
        self.inner, self.ranks, self.shell = inner, ranks, shell
        self.capabilities = getattr(inner, "capabilities", frozenset())
        self.parked: list[Event] = []
        self.dealing = True
        self.known: dict[int, Known] = {}
        self.next_id = 0
        self.queue: list[tuple[int, dict[str, Any] | None]] = []  # to begin; to resume so
        self.echo: list[Event] = []
        self.global_id: dict[int, int] = {}  # by the inner engine's

    @property
    def version(self) -> int:  # type: ignore[override]
        """Of the weights that sample now."""
        return self.inner.version

    @property
    def drafts(self) -> tuple[int, int]:  # type: ignore[override]
        """Of this process: tokens that were drafted so far, and those that were drawn."""
        return self.inner.drafts

    def submit(self, request: Request) -> int:
        """Queue a request and return its id."""
        return self._queue(Known(request))

    def fork(self, id: int, at: int, forced: tuple[int, ...] = (), **changes: Any) -> int:
        """Queue the first `at` tokens of a request and `forced`, where that request is drawn."""
        parent = self.known[id]
        request = forked(id, parent.request, parent.tokens, at, forced, changes)
        return self._queue(Known(request, (id, at, forced, changes)))

    def _queue(self, known: Known) -> int:
        id, self.next_id = self.next_id, self.next_id + 1
        self.known[id] = known
        self.queue.append((id, None))
        return id

    def resume(self, id: int, **changes: Any) -> None:
        """Continue a paused request; one that has ended gives its end event, without ids, again."""
        known = self.known[id]
        if known.status == "ended":
            ended = known.events[-1].ended
            self.echo.append(Event(id, (), (), self.version, ended=ended))
            return
        now = len(known.tokens)
        known.request = resumed(id, known.status, known.request, now, changes)
        known.status = "running"
        self.queue.append((id, changes))

    def abort(self, id: int) -> Finished:
        """End a request now; its last event (ended "aborted") is in the answer."""
        known = self.known[id]
        if known.status != "ended":
            self.queue = [entry for entry in self.queue if entry[0] != id]
            last = Event(id, (), (), self.version, ended="aborted")
            if known.inner >= 0:
                own = self.inner.abort(known.inner).events[-1]
                if known.owner == EVERYONE:
                    last = own._replace(request=id)
            known.hear(last)
        self.echo = [event for event in self.echo if event.request != id]
        return Finished(known.request, tuple(known.events))

    def release(self, id: int) -> None:
        """Forget a request: its tokens, its events, and its cache where it was drawn."""
        self.abort(id)
        known = self.known.pop(id)
        if known.inner >= 0:
            del self.global_id[known.inner]
            self.inner.release(known.inner)

    def busy(self) -> bool:
        """True while a step can bring something; the same in all processes."""
        open = any(known.status == "running" for known in self.known.values())
        return open or bool(self.echo)

    def step(self) -> list[Event]:
        """Run to where all have ended or paused, and tell; or one step of all, not `dealing`."""
        self.shell.whole()
        found, self.echo = self.echo, []
        queue, self.queue = self.queue, []
        if not self.dealing:
            for id, changes in queue:
                self._begin(id, changes, EVERYONE)
            told = self._own(self.inner.step()) if self.inner.busy() else []
        else:
            owners = self._deal(queue)
            own = [entry for entry in queue if owners[entry[0]] == self.ranks.number]
            for id, owner in owners.items():
                self.known[id].owner = owner
            told = [event for each in self.ranks.gathered(self._run(own)) for event in each]
            told.sort(key=lambda event: event.request)
        for event in told:
            self.known[event.request].hear(event)
        return found + told

    def _deal(self, queue: list[tuple[int, dict[str, Any] | None]]) -> dict[int, int]:
        """Who draws what: neighbours together, which share a prompt; forks beside their parents."""
        owners = {id: owner for id, _ in queue if (owner := self.known[id].owner) is not None}
        fresh = [id for id, _ in queue if id not in owners and self.known[id].parent is None]
        costs = [self.known[id].request.max_tokens for id in fresh]
        total, before = sum(costs), 0
        for id, cost in zip(fresh, costs, strict=True):
            owners[id] = min((2 * before + cost) * self.ranks.count // (2 * total), self.last)
            before += cost
        for id, _ in queue:
            if id not in owners:
                parent = self.known[id].parent
                assert parent is not None, "what has no parent was dealt above"
                above = self.known[parent[0]].owner
                owners[id] = owners[parent[0]] if above is None else above
        return owners

    @property
    def last(self) -> int:
        """Number of the last process."""
        return int(self.ranks.count) - 1

    def _run(self, queue: list[tuple[int, dict[str, Any] | None]]) -> list[Event]:
        """Draw these until each has ended or paused; their events."""
        events: list[Event] = []
        open, waiting = {id for id, _ in queue}, list(reversed(queue))
        while open:
            while waiting and not self.inner.full():
                id, changes = waiting.pop()
                self._begin(id, changes, self.ranks.number)
            new = self._own(self.inner.step())
            open -= {event.request for event in new if event.ended}
            events += new
        return events

    def _begin(self, id: int, changes: dict[str, Any] | None, owner: int) -> None:
        """Hand a request to the inner engine."""
        known = self.known[id]
        known.owner = owner
        if changes is not None:
            self.inner.resume(known.inner, **changes)
            return
        if known.parent is None:
            known.inner = self.inner.submit(known.request)
        else:
            parent, at, forced, more = known.parent
            known.inner = self.inner.fork(self.known[parent].inner, at, forced, **more)
        self.global_id[known.inner] = id

    def _own(self, events: list[Event]) -> list[Event]:
        """The inner engine's events under the ids of here; others' are left for them."""
        own = [event for event in events if event.request in self.global_id]
        self.inner.parked += [event for event in events if event.request not in self.global_id]
        return [event._replace(request=self.global_id[event.request]) for event in own]

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
