"""One engine shared by several processes: the first one calls it, all receive its events.

For an engine that samples outside the processes, such as a vLLM server. Every process runs the same
strategies and begins the same requests. Those of the first reach the engine, and it broadcasts
every event in the order of arrival, so all have the same rollouts whatever the engine's timing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from strop.engines.base import Engine, Event
from strop.engines.pool.one_per_process import ParallelEngine


class SharedEngine(ParallelEngine):
    """`open` makes the engine, in the first process alone; to the others its answers are told."""

    def __init__(self, open: Callable[[], Engine], ranks: Any) -> None:
        self.first: list[Engine] = []  # the engine, where this is the first process

        def begin() -> tuple[frozenset[str], int, int | None, int]:
            self.first.append(open())
            inner = self.first[0]
            return inner.capabilities, inner.version, inner.longest, inner.most_requests

        facts: tuple[frozenset[str], int, int | None, int] = ranks.from_first(begin)
        inner: Any = self.first[0] if self.first else None  # the others' is asked nothing
        super().__init__(inner, ranks, None)
        self.capabilities, self.now, self.longest, self.most_requests = facts

    @property
    def version(self) -> int:  # type: ignore[override]
        """Of the weights that sample now."""
        return self.now

    @property
    def drafts(self) -> tuple[int, int]:  # type: ignore[override]
        """It has none."""
        return 0, 0

    def cancel(self, id: int) -> list[Event]:
        """Draw a request no further; what only the first process could know is told to nobody."""
        self.queue = [each for each in self.queue if each.id != id]
        for engine in self.first:
            engine.cancel(id)
        return []

    def poll(self, seconds: float | None = None) -> list[Event]:
        """Wait, in the first process, until there is something to tell; all hear it."""
        queue, self.queue = self.queue, []

        def ask() -> list[Event]:
            for asked in queue:
                self.inner.start(*asked)
            return self.inner.poll()

        events: list[Event] = self.ranks.from_first(ask)
        return list(events)

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
