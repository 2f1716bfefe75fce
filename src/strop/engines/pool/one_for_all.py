"""One engine shared by several processes: the first one calls it, all receive its events.

This is for an engine that samples outside the processes, such as a vLLM server. Every process runs
the same strategies and starts the same requests. Only the first process sends them to the engine,
and it broadcasts every event in the order of arrival, so all have the same rollouts whatever the
engine's timing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from strop.engines.base import Engine, Event, Request, Source, try_start
from strop.engines.pool.one_per_process import QueuedRequest


class SharedEngine(Engine):
    """`open` makes the engine in the first process, which broadcasts its answers to the others.

    shell: puts the newest weights into the model that is handed over, where shards are trained.
    """

    lockstep = True

    def __init__(self, open: Callable[[], Engine], ranks: Any) -> None:
        self.ranks = ranks
        self.shell: Any = None
        self.queue: list[QueuedRequest] = []
        self.first: list[Engine] = []  # the engine, where this is the first process

        def begin() -> tuple[Any, ...]:
            self.first.append(open())
            inner = self.first[0]
            facts = inner.capabilities, inner.version, inner.longest, inner.most_requests
            return *facts, inner.notes

        facts = ranks.from_first(begin)
        self.capabilities, self.version, self.longest, self.most_requests, self.notes = facts

    def start(self, id: int, request: Request, source: Source = None) -> None:
        """Queue a request."""
        self.queue.append(QueuedRequest(id, request, source))

    def cancel(self, id: int) -> list[Event]:
        """Stop a request; its unreported events, which only the first process has, are dropped."""
        self.queue = [each for each in self.queue if each.id != id]
        for engine in self.first:
            engine.cancel(id)
        return []

    def poll(self, seconds: float | None = None) -> list[Event]:
        """Wait, in the first process, until there are events; all processes receive them."""
        queue, self.queue = self.queue, []

        def ask() -> list[Event]:
            (inner,) = self.first
            refused = [event for asked in queue for event in try_start(inner, *asked)]
            return refused or inner.poll()

        events: list[Event] = self.ranks.from_first(ask)
        return list(events)

    def forget(self) -> None:
        """Free, in the engine, all that only speeds requests up."""
        for engine in self.first:
            engine.forget()

    def load_weights(self, state: Any, version: int) -> None:
        """Sample with other weights from the next token on; state None: those that are trained."""
        self._whole()
        self.ranks.from_first(lambda: self.first[0].load_weights(state, version))
        self.version = version

    def load_state_dict(self, state: Mapping[str, Any], version: int) -> None:
        """Resume from a checkpoint, whose weights the model already has."""
        self._whole()
        self.ranks.from_first(lambda: self.first[0].load_state_dict(state, version))
        self.version = version

    def close(self) -> None:
        """Close the engine in the first process."""
        for engine in self.first:
            engine.close()

    def _whole(self) -> None:
        """Put the newest weights into the model that is handed over."""
        if self.shell is not None:
            self.shell.whole()
