"""What engines have in common that hand requests on to something else that draws, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from strop.engines.base import Engine, Event, Finished, Request, forked, resumed
from strop.support.errors import UserError


@dataclass(eq=False)
class Row:
    """A request and what came of it so far."""

    id: int
    request: Request
    tokens: list[int]  # the prompt's and the new ones
    full: int  # number of tokens at which it ends
    aim: int = 0  # number of tokens at which it is full or pauses
    status: Literal["running", "paused", "ended"] = "running"
    events: list[Event] = field(default_factory=list)


OfRow = TypeVar("OfRow", bound=Row)


class RowEngine(Engine, Generic[OfRow]):
    """Keeps the rows. A fork, and a paused request that goes on, are asked for with all tokens up
    to there: what draws has the beginning in its prefix cache.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], context_length: int) -> None:
        self.version = 0
        self.parked: list[Event] = []
        self.decode = decode
        self.context_length = context_length
        self.longest = context_length
        self.rows: dict[int, OfRow] = {}
        self.events: list[Event] = []  # not yet returned by step
        self.next_id = 0

    def submit(self, request: Request) -> int:
        """Queue a request and return its id; UserError where it cannot be done."""
        row = self._row(self.next_id, request, list(request.ids), self._check(request))
        self.next_id += 1
        self.rows[row.id] = row
        self._start(row)
        return row.id

    def fork(self, id: int, at: int, forced: tuple[int, ...] = (), **changes: Any) -> int:
        """Queue the first `at` tokens of a request and `forced`; see Engine.fork."""
        row = self._find(id)
        return self.submit(forked(id, row.request, row.tokens, at, forced, changes))

    def resume(self, id: int, **changes: Any) -> None:
        """Continue a paused request; one that has ended gives its end event, without ids, again."""
        row = self._find(id)
        if row.status == "ended":
            self.events.append(Event(id, (), (), self.version, ended=row.events[-1].ended))
            return
        request = resumed(id, row.status, row.request, len(row.tokens), changes)
        row.request, row.full = request, self._check(request)
        self._start(row)

    def abort(self, id: int) -> Finished:
        """End a request now; what it has drawn is in the answer."""
        row = self._find(id)
        if row.status != "ended":
            self._drop(row)
            row.status = "ended"
        self.events = [event for event in self.events if event.request != id]
        return Finished(row.request, tuple(row.events))

    def release(self, id: int) -> None:
        """Forget a request."""
        self.abort(id)
        del self.rows[id]

    def busy(self) -> bool:
        """True while a step can bring something: running requests, unread events."""
        return bool(self.events) or any(row.status == "running" for row in self.rows.values())

    # ---- for the engines over this one

    def _row(self, id: int, request: Request, tokens: list[int], full: int) -> OfRow:
        """A row of the engine's own kind."""
        raise NotImplementedError

    def _check(self, request: Request) -> int:
        """At how many tokens the request is full. UserError where it cannot be drawn."""
        raise NotImplementedError

    def _ask(self, row: OfRow) -> None:
        """Have tokens drawn up to `row.aim`."""
        raise NotImplementedError

    def _drop(self, row: OfRow) -> None:
        """Draw no more, and append the last event, which says "aborted"."""
        raise NotImplementedError

    def _find(self, id: int) -> OfRow:
        if id not in self.rows:
            raise UserError(
                f"the engine has no request {id}; it was never submitted or is released"
            )
        return self.rows[id]

    def _start(self, row: OfRow) -> None:
        """Ask for the tokens up to the next pause, or the end."""
        every = row.request.pause_every
        row.aim = min(row.full, len(row.tokens) + every) if every else row.full
        row.status = "running"
        self._ask(row)

    def _until_stop(self, row: OfRow, new: Sequence[int]) -> tuple[int, bool]:
        """How many of the new tokens belong to the answer, and whether the last one ends it."""
        strings = row.request.stop_strings
        window = max((len(string.encode()) for string in strings), default=0) + 4
        known = row.tokens[len(row.request.ids) - row.request.drawn :]
        for size, token in enumerate(new, 1):
            known.append(token)
            text = self.decode(known[-window:]) if strings else ""
            if token in row.request.stop_ids or any(string in text for string in strings):
                return size, True
        return len(new), False
