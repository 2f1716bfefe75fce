"""Answers that a client asks for again, because it did not get them: they are not drawn twice."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from strop.serving.fields import refuse

MOST = 1024  # answers that are held


class Attempt(NamedTuple):
    """Which request this is: of whom, where, with what body.

    name: the client's own for it (`Idempotency-Key`), empty without. again: how often the client
    has tried before (`x-stainless-retry-count`).
    """

    key: str
    route: str
    body: bytes
    name: str = ""
    again: int = 0

    @property
    def place(self) -> tuple[str, ...]:
        """Where its answer is held: under its name, or else under its body."""
        what = self.name or hashlib.sha256(self.body).hexdigest()
        return (self.key, self.route, "name" if self.name else "body", what)


@dataclass(eq=False)
class Work:
    """A request that is answered: its task, and how many connections wait for it."""

    task: asyncio.Task[Any]
    digest: bytes
    waiting: int = 0


class Replays:
    """The newest requests and their answers; all of it belongs to one event loop.

    A name stands for one request: whoever sends it again gets the same answer, also while it is
    being drawn. Without a name a retry gets the newest answer to an equal body, unless an equal
    request has failed or was broken off since: then it is the retry of that one, and is drawn.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.held: OrderedDict[tuple[str, ...], Work] = OrderedDict()
        self.unanswered: Counter[tuple[str, ...]] = Counter()
        self.running: set[Work] = set()

    async def answer(
        self, attempt: Attempt, draw: Callable[[], Awaitable[Any]]
    ) -> tuple[Any, bool]:
        """What `draw` gives, or gave to this request before; whether it did before.

        Where the last connection that waits is cancelled, so is the work. Raises Refused for a name
        that stands for another body.
        """
        place, digest = attempt.place, hashlib.sha256(attempt.body).digest()
        work = self._known(attempt, place, digest)
        replayed = work is not None
        if work is None:
            task = asyncio.ensure_future(draw())
            work = self.held[place] = Work(task, digest)
            self.held.move_to_end(place)
            self.running.add(work)
            self._trim()
        work.waiting += 1
        try:
            return await asyncio.shield(work.task), replayed
        except BaseException:
            self._lose(place, work)
            raise
        finally:
            work.waiting -= 1
            if work.task.done():
                self.running.discard(work)

    def _known(self, attempt: Attempt, place: tuple[str, ...], digest: bytes) -> Work | None:
        work = self.held.get(place)
        if attempt.name:
            if work is not None and work.digest != digest:
                raise refuse(
                    "this Idempotency-Key was sent with another body: give each request its own",
                    "Idempotency-Key",
                    "idempotency_key_reused",
                    409,
                )
            return work
        if not attempt.again or work is None:
            return None
        if self.unanswered[place]:
            self.unanswered[place] -= 1
            return None
        return work if work.task.done() else None

    def _lose(self, place: tuple[str, ...], work: Work) -> None:
        """A connection gets no answer: end the work where nobody else waits, and forget it."""
        failed = work.task.done()
        if not failed and work.waiting > 1:
            return
        work.task.cancel()
        self.running.discard(work)
        if place[2] == "body":
            self.unanswered[place] += 1
        if self.held.get(place) is work:
            del self.held[place]

    def _trim(self) -> None:
        while len(self.held) > self.most:
            self.held.popitem(last=False)
        while len(self.unanswered) > self.most:
            del self.unanswered[next(iter(self.unanswered))]

    def cancel(self) -> None:
        """End all that is being drawn."""
        for work in list(self.running):
            work.task.cancel()
