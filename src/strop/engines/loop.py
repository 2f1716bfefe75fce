"""An event loop that lets an engine work where an ordinary one would sleep."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import selectors
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, TypeVar, TypeVarTuple, Unpack

from strop.engines.asynchronous import ACCOUNT, Account, AsyncEngine

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Stepping(selectors.DefaultSelector):
    """Steps the engine while all coroutines wait, until one of them can go on."""

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__()
        self.engine = engine
        self.num_outside = 0  # calls in other threads that are awaited

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready; meanwhile the engine works."""
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        engine = self.engine
        if engine.settle():
            return ready
        outside = timeout is not None or self.num_outside or len(self.get_map()) > 1
        if outside and engine.engine.lockstep:
            engine.unordered = True
            return super().select(timeout)
        if engine.busy():
            engine.woken = False
            while engine.busy() and not engine.woken:
                engine.step()
                if outside:
                    break
            return super().select(0)
        if not outside:
            raise RuntimeError(
                "all coroutines wait, and the engine has nothing to run: begin a request, or return"
            )
        return super().select(timeout)


class EngineLoop(asyncio.SelectorEventLoop):
    """The loop of one run, or of several beside each other, on one engine."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.stepping = _Stepping(engine)
        super().__init__(self.stepping)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """As ever; while it is awaited, the loop sleeps where the engine has nothing to do."""
        self.stepping.num_outside += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._heard)
        return future

    def _heard(self, _: asyncio.Future[Any]) -> None:
        self.stepping.num_outside -= 1

    def __del__(self) -> None:
        """Close it where nobody did, as where an error has left runs in flight."""
        if not self.is_closed():
            self.close()

    def end(self) -> None:
        """Cancel what still runs, and close the loop."""
        left = asyncio.all_tasks(self)
        for task in left:
            task.cancel()
        try:
            if left:
                self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.run_until_complete(self.shutdown_asyncgens())
        finally:
            self.close()


async def on(account: Account, work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine whose requests are on an account."""
    ACCOUNT.set(account)
    return await work


def run(engine: AsyncEngine, work: Coroutine[Any, Any, Any], account: Account) -> Any:
    """Run a coroutine to its end from ordinary code, and close its account; its value.

    Where this thread has a running event loop, as in a notebook, it runs in another one. Raises
    RuntimeError inside a coroutine of this engine: await there, or call `engine.sample`.
    """
    try:
        running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if isinstance(running, EngineLoop):
        work.close()
        raise RuntimeError("a coroutine of the engine cannot run another one: await it")
    if running is not None:
        return _beside(engine, work, account)
    loop = EngineLoop(engine)
    try:
        return loop.run_until_complete(on(account, work))
    finally:
        engine.close(account)
        loop.end()


def _beside(engine: AsyncEngine, work: Coroutine[Any, Any, Any], account: Account) -> Any:
    """Run it in a thread; an interrupt cancels it and is raised here once it has ended."""
    found: Future[Any] = Future()
    loop = EngineLoop(engine)
    task = loop.create_task(on(account, work))

    def go() -> None:
        try:
            try:
                value = loop.run_until_complete(task)
            finally:
                engine.close(account)
                loop.end()
        except BaseException as error:
            found.set_exception(error)
        else:
            found.set_result(value)  # once nothing here touches the engine any more

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(go,), daemon=True)
    try:
        thread.start()
        return found.result()
    except KeyboardInterrupt:
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            loop.call_soon_threadsafe(task.cancel)
        found.exception()
        raise
