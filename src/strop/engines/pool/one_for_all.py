"""One engine shared by several processes: the first one calls it, all receive its events.

For an engine that samples outside the processes, such as a vLLM server. Every process runs the same
strategies and gives the same commands. Those of the first reach the engine, and it broadcasts every
event in the order of arrival, so all have the same rollouts whatever the engine's timing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from strop.engines.base import Answer, Engine, Event
from strop.engines.pool.one_per_process import EVERYONE, ParallelEngine


class SharedEngine(ParallelEngine):
    """`open` makes the engine, in the first process alone; to the others its answers are told."""

    def __init__(self, open: Callable[[], Engine], ranks: Any) -> None:
        self.first: list[Engine] = []  # the engine, where this is the first process

        def begin() -> tuple[frozenset[str], int, int | None]:
            self.first.append(open())
            return self.first[0].capabilities, self.first[0].version, self.first[0].longest

        told: tuple[frozenset[str], int, int | None] = ranks.from_first(begin)
        inner: Any = self.first[0] if self.first else None  # the others' is asked nothing
        super().__init__(inner, ranks, None)
        self.capabilities, self.now, self.longest = told
        self.is_full = False

    @property
    def version(self) -> int:  # type: ignore[override]
        """Of the weights that sample now."""
        return self.now

    @property
    def drafts(self) -> tuple[int, int]:  # type: ignore[override]
        """It has none."""
        return 0, 0

    def full(self) -> bool:
        """True while so many requests wait that others had better not be submitted yet."""
        return self.is_full

    def abort(self, id: int) -> Answer:
        """End a request now; its last event (ended "aborted") is in the answer."""
        known = self.known[id]
        if not known.ended:
            if id in self.queue:
                self.queue.remove(id)
            if known.inner >= 0:
                self.inner.abort(known.inner)
            known.hear(Event(id, (), (), self.version, ended="aborted"))
        return Answer(known.request, tuple(known.events))

    def step(self) -> list[Event]:
        """Wait, in the first process, until there is something to tell; all hear it."""
        queue, self.queue = self.queue, []

        def ask() -> tuple[list[Event], bool]:
            for id in queue:
                self._begin(id, EVERYONE)
            events = self._own(self.inner.step()) if self.inner.busy() else []
            return events, self.inner.full()

        told: list[Event]
        told, self.is_full = self.ranks.from_first(ask)
        for event in told:
            self.known[event.request].hear(event)
        return list(told)

    def forget(self) -> None:
        """Let go of what only speeds requests up, where the engine is."""
        for engine in self.first:
            engine.forget()

    def load_weights(self, state: Any, version: int) -> None:
        """Sample with other weights from the next token on; state None: those that are trained."""
        self._whole()
        self.ranks.from_first(lambda: self.inner.load_weights(state, version))
        self.now = version

    def newest(self) -> AbstractContextManager[None]:
        """It has no others."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """A server's weights are the newest, which the checkpoint has."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], version: int) -> None:
        """Go on from a checkpoint: the model has its weights by now."""
        self._whole()
        self.ranks.from_first(lambda: self.inner.load_state_dict(state, version))
        self.now = version

    def close(self) -> None:
        """Let go of the engine, where it is."""
        for engine in self.first:
            engine.close()

    def _whole(self) -> None:
        """Put the newest weights into the model that is handed over."""
        if self.shell is not None:
            self.shell.whole()
