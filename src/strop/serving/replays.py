"""Caches answers for clients that repeat a request, so that they are not drawn twice."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from strop.serving.fields import refuse

MOST = 1024  # most cached answers
MOST_TOKENS = 2**22  # most tokens in them


class Attempt(NamedTuple):
    """Identifies a request by its client, route and body.

    name: the client's name for it (`Idempotency-Key`), or empty. again: how often the client has
    tried before (`x-stainless-retry-count`).
    """

    key: str
    route: str
    body: bytes
    name: str = ""
    again: int = 0

    @property
    def place(self) -> tuple[str, ...]:
        """The cache key of its answer: by its name, or else by its body."""
        what = self.name or hashlib.sha256(self.body).hexdigest()
        return (self.key, self.route, "name" if self.name else "body", what)


@dataclass(eq=False)
class Work:
    """A request in progress or done: its task, and how many connections wait for it."""

    task: asyncio.Task[Any]
    digest: bytes
    waiting: int = 0
    size: int = 0  # tokens, once it is done


class Replays:
    """The newest requests and their answers; it belongs to one event loop.

    A name stands for one request: a client that repeats it gets the same answer, also while it is
    being drawn. Without a name a retry gets the newest answer to an equal body, unless an equal
    request has failed or was cancelled since: then it is a retry of that one, and is drawn.
    size: tokens of an answer and its prompt.
    """

    def __init__(
        self,
        size: Callable[[Any], int] = lambda answer: 1,
        most: int = MOST,
        most_tokens: int = MOST_TOKENS,
    ) -> None:
        self.size, self.most, self.most_tokens, self.tokens = size, most, most_tokens, 0
        self.held: OrderedDict[tuple[str, ...], Work] = OrderedDict()
        self.unanswered: Counter[tuple[str, ...]] = Counter()
        self.running: set[Work] = set()

    async def answer(
        self, attempt: Attempt, draw: Callable[[], Awaitable[Any]]
    ) -> tuple[Any, bool]:
        """The result of `draw`, new or cached for this request, and whether it was cached.

        When the last waiting connection is cancelled, the work is cancelled too. Raises Refused for
        a name that was used with another body.
        """
        place, digest = attempt.place, hashlib.sha256(attempt.body).digest()
        work = self._known(attempt, place, digest)
        replayed = work is not None
        if work is None:
            task = asyncio.ensure_future(draw())
            work = self._hold(place, Work(task, digest))
        work.waiting += 1
        try:
            found = await asyncio.shield(work.task)
            self._measure(place, work)
            return found, replayed
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
        if not attempt.again:
            return None
        if self.unanswered[place]:
            self.unanswered[place] -= 1
            return None
        return work if work is not None and work.task.done() else None

    def _lose(self, place: tuple[str, ...], work: Work) -> None:
        """Handle a lost connection: cancel the work where no other waits, and forget it."""
        failed = work.task.done()
        if not failed and work.waiting > 1:
            return
        work.task.cancel()
        self.running.discard(work)
        self.unanswered[place] += 1
        if self.held.get(place) is work:
            self._forget(place)

    def _hold(self, place: tuple[str, ...], work: Work) -> Work:
        self._forget(place)
        self.held[place] = work
        self.running.add(work)
        self._trim()
        return work

    def _forget(self, place: tuple[str, ...]) -> None:
        work = self.held.pop(place, None)
        self.tokens -= work.size if work is not None else 0

    def _measure(self, place: tuple[str, ...], work: Work) -> None:
        """Count the size of a finished answer."""
        if not work.size and self.held.get(place) is work:
            work.size = self.size(work.task.result())
            self.tokens += work.size
            self._trim()

    def _trim(self) -> None:
        while len(self.held) > self.most or self.tokens > self.most_tokens:
            self._forget(next(iter(self.held)))
        while len(self.unanswered) > self.most:
            del self.unanswered[next(iter(self.unanswered))]

    def cancel(self) -> None:
        """Cancel all answers in progress."""
        for work in list(self.running):
            work.task.cancel()
