"""A backend over an engine of this process, which is stepped by a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from strop.engines.asynchronous import AsyncEngine, EngineLoop
from strop.engines.base import Request, Rule
from strop.engines.rules import MinP, TopK, TopP
from strop.serving.fields import refuse
from strop.serving.protocol import Busy, ModelAnswer, ModelCall, Refused

T = TypeVar("T")
COUNTED = 2**62  # seeds of calls without one start here, away from clients' seeds
NEXT = 1000003  # between the seeds of a call's answers: far from those of other calls


class EngineBackend:
    """Draws the answers of all calls concurrently; a context manager, or `start` and `close`.

    Nothing else may step or use the engine meanwhile, except through `between_steps`. stop_ids and
    stop_strings end every answer. max_tokens: of a call that sets none; 0: as many as fit into the
    context. seed: of calls that give none; their seeds depend on their order. `ended` is set once
    calls are no longer answered.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        max_model_len: int,
        stop_ids: Sequence[int] = (),
        stop_strings: Sequence[str] = (),
        max_tokens: int = 0,
        seed: int = 0,
    ) -> None:
        self.engine, self.max_model_len, self.max_tokens = engine, max_model_len, max_tokens
        self.stop_ids, self.stop_strings = tuple(stop_ids), tuple(stop_strings)
        self.ended = threading.Event()
        self.broken: BaseException | None = None
        self.paused = False
        self.seconds_paused = 1.0
        self._lock = threading.Lock()  # of what is pending, and of the end
        self._pending: set[concurrent.futures.Future[Any]] = set()
        self._seeds = itertools.count(COUNTED + seed * NEXT)
        self._loop: EngineLoop | None = None
        self._closed: asyncio.Future[None] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> EngineBackend:
        """Start to step the engine whenever there is something to draw."""
        if self._thread is not None:
            raise RuntimeError("the backend runs already")
        self._loop = EngineLoop(self.engine)
        self._loop.stepping.num_outside += 1  # work may come from other threads at any time
        self._closed = self._loop.create_future()
        args = (self._loop, self._closed)
        self._thread = threading.Thread(
            target=self._run, args=args, name="strop-engine", daemon=True
        )
        self._thread.start()
        return self

    def close(self) -> None:
        """End answers in progress, and the thread; the caller may use the engine again."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._closed is None:
            return
        with contextlib.suppress(RuntimeError):  # its loop has ended by itself
            self._loop.call_soon_threadsafe(_finish, self._closed)
        thread.join()

    def __enter__(self) -> EngineBackend:
        return self if self._thread is not None else self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def pause(self, retry_after: float = 1.0) -> None:
        """Take no call until `resume`; clients are asked to retry after `retry_after` seconds.

        Answers in progress continue.
        """
        self.paused, self.seconds_paused = True, retry_after

    def resume(self) -> None:
        """Take calls again."""
        self.paused = False

    def load_weights(self, state: Any, version: int) -> None:
        """Draw with other weights from the next token on, also in answers in progress."""
        self.pause()
        try:
            self.between_steps(lambda: self.engine.engine.load_weights(state, version))
        finally:
            self.resume()

    def between_steps(self, work: Callable[[], T]) -> T:
        """Run `work` between two steps of the engine and return its result. Call it from other
        threads. Raises Refused where the engine fails or is closed before.
        """

        async def do() -> T:
            return work()

        try:
            return self._submit(do()).result()
        except concurrent.futures.CancelledError:
            raise self._over() from self.broken

    async def say(self, call: ModelCall) -> list[ModelAnswer]:
        """Draw the answers to a call; if cancelled, their requests end at once."""
        if self.paused:
            raise Busy(self.seconds_paused)
        requests = self._requests(call)
        try:
            return await asyncio.wrap_future(self._submit(self._draw(requests)))
        except asyncio.CancelledError:
            if self.ended.is_set():
                raise self._over() from None
            raise

    async def _draw(self, requests: Sequence[Request]) -> list[ModelAnswer]:
        with self.engine.open_account():
            answers = await self.engine.generate_all(requests)
        for answer in answers:
            if answer.failed:
                raise Refused(500, f"no token could be drawn: {answer.events[-1].why}")
        return [ModelAnswer.of(answer) for answer in answers]

    def _requests(self, call: ModelCall) -> list[Request]:
        room = self.max_model_len - len(call.prompt_ids)
        capabilities = self.engine.capabilities
        temperature = 1.0 if call.temperature is None else call.temperature
        rules = _rules(call)
        if rules and "rules" not in capabilities:
            raise refuse("this engine does not apply top_p, top_k and min_p: leave them out")
        if call.num_top and ("top" not in capabilities or rules or temperature not in (0, 1)):
            name = "top_logprobs" if call.route == "chat" else "logprobs"
            raise refuse(
                "the likeliest tokens are known at temperature 1 without top_p, top_k and min_p, "
                f"from an engine that tells them: set {name} to 0 for the drawn ones alone",
                name,
            )
        # Greedy answers alone are reported with the model's log-probabilities, which servers do not
        # know at every temperature and with every cut.
        want = {"logp_model"} & capabilities if temperature == 0 else set[str]()
        want |= {"top"} if call.num_top else set()
        request = Request(
            call.prompt_ids,
            min(call.max_tokens or self.max_tokens or room, room),
            temperature,
            rules,
            num_top=call.num_top,
            stop_ids=tuple(dict.fromkeys((*self.stop_ids, *call.stop_ids))),
            stop_strings=tuple(dict.fromkeys((*self.stop_strings, *call.stop_strings))),
            want=frozenset(want),
        )
        return [replace(request, seed=each) for each in self._seeds_of(call)]

    def _seeds_of(self, call: ModelCall) -> list[int]:
        """The seed of each answer; the first one has the call's own."""
        if call.seed is None:
            return list(itertools.islice(self._seeds, call.num))
        return [call.seed + NEXT * number for number in range(call.num)]

    def _submit(self, work: Any) -> concurrent.futures.Future[Any]:
        """Run a coroutine between two steps of the engine; its future ends in any case."""
        with self._lock:
            if self._loop is None or self.ended.is_set():
                work.close()
                raise self._over()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def _over(self) -> Refused:
        if self.broken is not None:
            return Refused(500, "the policy's engine has failed; its server says why where it runs")
        return Refused(503, "the policy is served no more")

    def _run(self, loop: EngineLoop, closed: asyncio.Future[None]) -> None:
        try:
            loop.run_until_complete(closed)
        except BaseException as error:
            self.broken = error
            print("the policy's engine has failed:", file=sys.stderr)
            traceback.print_exception(error)
        finally:
            with self._lock:
                self.ended.set()
                pending = list(self._pending)
            for future in pending:
                future.cancel()
            with contextlib.suppress(Exception):  # the engine may have failed
                loop.end()


def _finish(closed: asyncio.Future[None]) -> None:
    if not closed.done():
        closed.set_result(None)


def _rules(call: ModelCall) -> tuple[Rule, ...]:
    """The cuts of a call, in the order of `rollout.top_k`, `top_p` and `min_p`."""
    found: list[Rule] = [TopK(call.top_k)] if call.top_k > 0 else []
    found += [TopP(call.top_p)] if call.top_p < 1 else []
    found += [MinP(call.min_p)] if call.min_p else []
    return tuple(found)
