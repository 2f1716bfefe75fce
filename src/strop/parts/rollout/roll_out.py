"""Runs strategies of rollouts on an engine, one to its end or several beside each other.

They run in an event loop that lets the engine work where an ordinary one would sleep.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import selectors
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple, TypeAlias, TypeVar, TypeVarTuple, Unpack

from strop.batch.batch import Batch
from strop.engines.asynchronous import ACCOUNT, Account, AsyncEngine, Ends, asynchronous
from strop.engines.base import Engine
from strop.method.services import Services
from strop.parts.rollout.base import THROWN_AWAY, Rollouts
from strop.support.errors import UserError

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


Strategy: TypeAlias = Coroutine[Any, Any, Rollouts]


class RolledOut(NamedTuple):
    """What a strategy of rollouts came to."""

    batch: Batch
    state: Any
    num_thrown_away: int  # tokens that the engine drew for it and that are not in the batch
    metrics: Mapping[str, float] = {}


def roll_out(strategy: Strategy, engine: Engine, services: Services | None = None) -> RolledOut:
    """Run a strategy to its end. Raises UserError where all of its requests failed.

    A strategy whose tokens are of other steps too tells `rollout/tokens_thrown_away` itself.
    """
    account = account_of(services)
    returned = run(asynchronous(engine), strategy, account)
    account.ends.check()
    return _rolled_out(returned, account)


def account_of(services: Services | None) -> Account:
    """An account whose failures the run's services are told of."""
    return Account() if services is None else Account(services.sampling.failures.append)


class Crowd:
    """Strategies of rollouts on one engine, each of which begins and ends for itself."""

    def __init__(self, engine: Engine, services: Services | None = None) -> None:
        self.engine, self.services = asynchronous(engine), services
        self.loop = EngineLoop(self.engine)
        self.runs: dict[Any, tuple[asyncio.Task[Any], Account]] = {}  # by what `begin` was told

    def begin(self, key: Any, strategy: Strategy) -> None:
        """Run a strategy beside the others from the next turn on."""
        account = account_of(self.services)
        self.runs[key] = self.loop.create_task(on(account, strategy)), account

    def left(self, key: Any, size: int) -> int:
        """Rollouts that one under way has yet to end, of `size`; it may have more requests open.

        Between two turns what follows an ended request, such as an episode's next one, has begun.
        """
        _, account = self.runs[key]
        return max(size - (account.num_begun - len(account.open)), len(account.open))

    def turn(self) -> list[tuple[Any, RolledOut, Ends]]:
        """Let the engine step once; those that have ended by then, with their keys."""
        self.loop.run_until_complete(self._turn())
        return [self._end(key) for key, (task, _) in list(self.runs.items()) if task.done()]

    async def _turn(self) -> None:
        await self.engine.settled(outer=True)
        if not any(task.done() for task, _ in self.runs.values()):
            self.engine.step()
            await self.engine.settled(outer=True)  # what follows the ends of this step has begun

    def _end(self, key: Any) -> tuple[Any, RolledOut, Ends]:
        task, account = self.runs.pop(key)
        self.engine.close(account)
        return key, _rolled_out(task.result(), account), account.ends

    def close(self) -> None:
        """End all that are under way."""
        for _, account in self.runs.values():
            self.engine.close(account)
        self.runs = {}
        if not self.loop.is_closed():
            self.loop.end()


def _rolled_out(returned: Any, account: Account) -> RolledOut:
    """What a strategy that has ended came to. Raises UserError where that is none of it."""
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        raise UserError(
            f"the strategy returned {type(returned).__name__}; it returns its batch and its state, "
            "which is None where it keeps none"
        )
    batch, state, metrics = (*returned, {})[:3]
    thrown_away = int(metrics.get(THROWN_AWAY, max(account.num_drawn - _drawn_in(batch), 0)))
    told = {name: value for name, value in metrics.items() if name != THROWN_AWAY}
    return RolledOut(batch, state, thrown_away, told)


def _drawn_in(batch: Batch) -> int:
    """Tokens of a batch that an engine drew, those that rollouts share counted once."""
    drawn_T = batch["mask_T"] & (batch["origin_T"] == 0)
    return int(drawn_T.sum() - batch["fork_at_B"].clamp(min=0).sum())
