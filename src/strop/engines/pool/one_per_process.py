"""One engine in each of several processes, behind the interface of one; they split the requests.

Every process runs the same strategies and starts the same requests. A process samples its own share
of the answers; then all gather those of the others. A token depends on (seed, position, weights)
alone, so the answers are those of one engine. Events come when all running requests have ended.
Where that is too late, because a strategy stops answers early, `dealing` is off: every process
samples all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from strop.engines.base import Engine, Event, Request, Source, try_start

NOBODY = -1


class QueuedRequest(NamedTuple):
    """A request that an engine is to start."""

    id: int
    request: Request
    source: Source = None


class ParallelEngine(Engine):
    """`inner` of this process, its requests shared with the others' by `ranks`.

    shell: puts the newest weights into the model that `inner` samples with.
    """

    lockstep = True

    def __init__(self, inner: Engine, ranks: Any, shell: Any) -> None:
        self.inner, self.ranks, self.shell = inner, ranks, shell
        self.capabilities, self.longest = inner.capabilities, inner.longest
        self.dealing = True
        self.queue: list[QueuedRequest] = []
        self.keeper: dict[int, int] = {}  # index of the process that has the cache of a request

    @property
    def version(self) -> int:  # type: ignore[override]
        """The version of the current sampling weights."""
        return self.inner.version

    @property
    def drafts(self) -> tuple[int, int]:  # type: ignore[override]
        """This process's numbers of drafted and of accepted tokens so far."""
        return self.inner.drafts

    def start(self, id: int, request: Request, source: Source = None) -> None:
        """Queue a request."""
        self.queue.append(QueuedRequest(id, request, source))

    def cancel(self, id: int) -> list[Event]:
        """Stop a request in all processes; returns this one's events that are not reported yet."""
        self.queue = [each for each in self.queue if each.id != id]
        self.keeper.pop(id, None)
        return self.inner.cancel(id)

    def forget(self) -> None:
        """Free all caches."""
        self.keeper.clear()
        self.inner.forget()

    def poll(self, seconds: float | None = None) -> list[Event]:
        """Run until all requests have ended, and report; or one step of all if not `dealing`."""
        self.shell.whole()
        queue, self.queue = self.queue, []
        if not self.dealing:
            refused = [event for asked in queue for event in try_start(self.inner, *asked)]
            return refused or self.inner.poll(seconds)
        own = list[QueuedRequest]()
        for asked, owner in zip(queue, self._deal(queue), strict=True):
            if asked.request.keep:
                self.keeper[asked.id] = owner
            if owner == self.ranks.number:
                own.append(asked)
        events = [event for each in self.ranks.gathered(self._run(own)) for event in each]
        return sorted(events, key=lambda event: event.request)

    def _deal(self, queue: Sequence[QueuedRequest]) -> list[int]:
        """The process of each request: neighbours, which share a prompt, go together, and a request
        goes where the one is that it continues.
        """
        sources = [-1 if each.source is None else each.source[0] for each in queue]
        owners = [self.keeper.get(source, NOBODY) for source in sources]
        fresh = [n for n, owner in enumerate(owners) if owner == NOBODY]
        costs = [queue[n].request.max_tokens for n in fresh]
        total, before, last = sum(costs), 0, self.ranks.count - 1
        for n, cost in zip(fresh, costs, strict=True):
            owners[n] = min((2 * before + cost) * self.ranks.count // (2 * total), last)
            before += cost
        return owners

    def _run(self, asked: Sequence[QueuedRequest]) -> list[Event]:
        """Sample these until all have ended; returns their events."""
        events, open, waiting = list[Event](), set[int](), list(reversed(asked))
        while open or waiting:
            new = list[Event]()
            while waiting and len(open) < self.inner.most_requests:
                open.add(waiting[-1].id)
                new += try_start(self.inner, *waiting.pop())
            new = new or self.inner.poll()
            open -= {event.request for event in new if event.ended}
            events += new
        return events

    def load_weights(self, state: Any, version: int) -> None:
        """Sample with other weights from the next token on; state None: those that are trained."""
        self.shell.whole()
        self.inner.load_weights(state, version)

    def newest(self) -> AbstractContextManager[None]:
        """Inside, the engine samples with the newest weights."""
        return self.inner.newest()

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint needs beside the newest weights."""
        return self.inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], version: int) -> None:
        """Resume from a checkpoint, whose weights the model already has."""
        self.shell.whole()
        self.inner.load_state_dict(state, version)

    def close(self) -> None:
        """Close the inner engine."""
        self.inner.close()
