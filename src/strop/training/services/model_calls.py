"""Passes calls of the model from a server's thread to the rollouts' loop, and answers back."""

import asyncio
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

from strop.engines.asynchronous import elsewhere
from strop.method.services import ModelAnswer, ModelCall, Refused, Withdrawn


class CallQueue:
    """A queue of clients' calls, in the order in which they came, until it is closed.

    over_status, over_text: the refusal that clients get then.
    """

    def __init__(self, over_status: int = 503, over_text: str = "the run is over") -> None:
        self.over_status, self.over_text = over_status, over_text
        self.lock = threading.Lock()
        self.events: deque[Any] = deque()
        self.waiting: Future[Any] | None = None  # for the next event
        self.answers: dict[str, Future[list[ModelAnswer]]] = {}  # by call
        self.over = False
        self.since = time.monotonic()  # the last answer, or the start

    async def event(self) -> Any:
        """The next event: a call, the withdrawal of one, or anything else that was put."""
        with self.lock:
            if self.events:
                return self.events.popleft()
            waiting = self.waiting = Future()
        try:
            return await elsewhere(waiting)
        except asyncio.CancelledError:
            with self.lock:
                if self.waiting is waiting:
                    self.waiting = None
                elif not waiting.cancelled():  # the event came, and nobody has read it
                    self.events.appendleft(waiting.result())
            raise

    def put(self, event: Any) -> None:
        """Add an event. From any thread."""
        with self.lock:
            waiting, self.waiting = self.waiting, None
            if waiting is None or not waiting.set_running_or_notify_cancel():
                self.events.append(event)
            else:
                waiting.set_result(event)

    def reply(self, call: ModelCall, answers: list[ModelAnswer]) -> None:
        """Give a call its answers."""
        if (future := self._answered(call.id)) is not None:
            future.set_result(answers)

    def refuse(self, call: ModelCall, why: Exception) -> None:
        """Give a call an error."""
        if (future := self._answered(call.id)) is not None:
            future.set_exception(why)

    async def say(self, call: ModelCall) -> list[ModelAnswer]:
        """The answers to a call, awaited in the server's loop. On cancellation, as when the client
        goes away, the call is withdrawn.
        """
        future: Future[list[ModelAnswer]] = Future()
        with self.lock:
            if self.over:
                raise self._refusal()
            self.answers[call.id] = future
        self.put(call)
        try:
            # shielded, since only `_answered` may end it: answers come from another thread
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            self._withdraw(call)
            raise

    def close(self) -> None:
        """Refuse all calls from now on, also those that wait."""
        with self.lock:
            self.over = True
            left, self.answers = self.answers, {}
        for future in left.values():
            future.set_exception(self._refusal())

    def _refusal(self) -> Refused:
        return Refused(self.over_status, self.over_text)

    def _answered(self, call_id: str) -> "Future[list[ModelAnswer]] | None":
        """Remove and return the future that waits for a call; None where nobody waits any more."""
        with self.lock:
            self.since = time.monotonic()
            return self.answers.pop(call_id, None)

    def _withdraw(self, call: ModelCall) -> None:
        """Drop a call whose client has gone, and have its sampling stopped."""
        self._answered(call.id)
        with self.lock:
            if call in self.events:  # nobody has read it
                self.events.remove(call)
                return
        self.put(Withdrawn(call.id))
