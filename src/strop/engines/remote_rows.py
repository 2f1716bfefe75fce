"""What engines have in common that hand requests on to something else that draws, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from strop.engines.base import Answer, Engine, Event, Request, Source
from strop.support.errors import UserError


@dataclass(eq=False)
class Row:
    """A request and what came of it so far."""

    id: int
    request: Request
    tokens: list[int]  # the prompt's and the new ones
    full: int  # number of tokens at which it ends
    ended: bool = False
    events: list[Event] = field(default_factory=list)


OfRow = TypeVar("OfRow", bound=Row)


class RowEngine(Engine, Generic[OfRow]):
    """Keeps the rows. What draws finds the beginning of a request in its own prefix cache."""

    def __init__(self, decode: Callable[[Sequence[int]], str], context_length: int) -> None:
        self.version = 0
        self.decode = decode
        self.context_length = context_length
        self.longest = context_length
        self.rows: dict[int, OfRow] = {}
        self.events: list[Event] = []  # not yet returned by step
        self.next_id = 0

    def submit(self, request: Request, source: Source = None) -> int:
        """Queue a request and return its id; UserError where it cannot be done."""
        row = self._row(self.next_id, request, list(request.ids), self._check(request))
        self.next_id += 1
        self.rows[row.id] = row
        self._ask(row)
        return row.id

    def abort(self, id: int) -> Answer:
        """End a request now; what it has drawn is in the answer."""
        row = self._find(id)
        if not row.ended:
            self._drop(row)
            row.ended = True
        self.events = [event for event in self.events if event.request != id]
        return Answer(row.request, tuple(row.events))

    def release(self, id: int) -> None:
        """Forget a request."""
        self.abort(id)
        del self.rows[id]

    def busy(self) -> bool:
        """True while a step can bring something: running requests, unread events."""
        return bool(self.events) or any(not row.ended for row in self.rows.values())

    # ---- for the engines over this one

    def _row(self, id: int, request: Request, tokens: list[int], full: int) -> OfRow:
        """A row of the engine's own kind."""
        raise NotImplementedError

    def _check(self, request: Request) -> int:
        """At how many tokens the request is full. UserError where it cannot be drawn."""
        raise NotImplementedError

    def _ask(self, row: OfRow) -> None:
        """Have tokens drawn up to `row.full`."""
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
