"""The engine that strategies get: they await requests, whose order changes nothing.

One `AsyncEngine` stands over every engine. It records the requests that were started, their
results, and whose cache a new request may continue from. The engine beneath it starts a request,
cancels one, and works for a while. The event loop, at the end of this file, runs the engine
whenever an ordinary loop would sleep.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import selectors
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, TypeVarTuple, Unpack

from strop.engines.base import ADAPTERS, Account, Answer, Engine, Event, Request
from strop.engines.prefixes import Prefixes
from strop.support.errors import UserError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
NEEDS = {
    "rules": "rules",
    "num_top": "top",
    "weights": ADAPTERS,
}  # field of a request -> capability
# While requests are sampled elsewhere: between two calls of `before_step` or `while_waiting`, and
# between checks of other awaited work.
STEP_SECONDS, LOOK_SECONDS = 0.2, 0.02


ACCOUNT: ContextVar[Account] = ContextVar("account")


class PendingRequest:
    """A request in progress: await it for its Answer. `done`: it has ended."""

    def __init__(self, book: AsyncEngine, request: Request, account: Account) -> None:
        self.book, self.request, self.account = book, request, account
        self.id = -1  # its number at the engine; -1: the engine never had it
        self.events: list[Event] = []
        self.passes = 0  # reported before a restart, after which the engine reports them again
        self.done = False
        self.refused: UserError | None = None
        self.waiters: list[Waiter] = []

    def answer(self) -> Answer:
        """Its answer so far. Raises UserError where the engine refused the request."""
        if self.refused is not None:
            raise self.refused
        return Answer(self.request, tuple(self.events))

    def record(self, event: Event) -> None:
        """Add an event of the engine, and count its tokens."""
        if self.passes and event.experts:
            event, self.passes = event._replace(experts=event.experts[self.passes :]), 0
        self.events.append(event)
        self.account.num_drawn += len(event.ids)

    def rest(self) -> Request:
        """The request for the tokens that are still to be sampled."""
        if not self.events:
            return self.request
        answer = self.answer()
        return answer.more(self.request.max_tokens - len(answer.ids))

    def stop(self) -> Answer:
        """End it now; the answer has the tokens so far, and has ended as "aborted"."""
        self.book.stop(self)
        return self.answer()

    def __await__(self) -> Generator[Any, None, Answer]:
        yield from self.book.wait([self]).__await__()
        return self.answer()


class Waiter:
    """One wake-up for several requests, once `left` of them have ended."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.future = asyncio.get_running_loop().create_future()

    def count(self) -> bool:
        """Count one more end; returns whether it was the last one that this waits for."""
        self.left -= 1
        if self.left or self.future.done():
            return False
        self.future.set_result(None)
        return True


class AsyncEngine:
    """Samples answers for coroutines, on one engine; several runs may share it.

    A token depends on (seed, position, weights) alone, so an answer is the same whatever runs
    beside it. A request that begins with some or all tokens of one that ended with `keep`, under
    the same weights, continues from its cache, which is found by content. before_step: called
    before the engine works, and again and again while it has no events. while_waiting: called again
    and again while it has nothing to do and coroutines wait for other things.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.before_step: Callable[[], None] = lambda: None
        self.while_waiting: Callable[[], None] = lambda: None
        self.queue: deque[PendingRequest] = deque()  # requests that the engine does not have yet
        self.running: dict[int, PendingRequest] = {}  # requests that it has
        self.next_id = 0
        self.prefixes: dict[str, Prefixes] = {}  # by the weights that sampled them
        self.resting: list[asyncio.Future[None]] = []
        self.outer: list[asyncio.Future[None]] = []  # those that wait for `resting` too
        self.woken = False  # a coroutine may continue
        # Coroutines have waited for other things than requests, which finish in different orders in
        # several processes; the requests that they start then are sorted.
        self.unordered = False

    @property
    def capabilities(self) -> frozenset[str]:
        """The engine's capabilities, out of `base.CAPABILITIES`."""
        return self.engine.capabilities

    @property
    def version(self) -> int:
        """The version of the current sampling weights."""
        return self.engine.version

    def begin(self, request: Request) -> PendingRequest:
        """Queue a request. Raises UserError where the engine lacks a capability for it."""
        wanted = {need for name, need in NEEDS.items() if getattr(request, name)} | request.want
        if lacking := sorted(wanted - self.engine.capabilities):
            raise UserError(
                f"the strategy needs an engine with {lacking[0]!r}; "
                f"{type(self.engine).__name__} has {sorted(self.engine.capabilities)}"
            )
        account = ACCOUNT.get()
        pending = PendingRequest(self, request, account)
        account.open[pending] = None
        account.num_started += 1
        self.queue.append(pending)
        return pending

    async def generate(self, request: Request) -> Answer:
        """The answer to a request; cancellation stops the request."""
        return (await self.generate_all([request]))[0]

    async def generate_all(self, requests: Sequence[Request]) -> list[Answer]:
        """The answers to concurrent requests, in the order of the requests.

        Cancellation stops the requests.
        """
        pending = [self.begin(request) for request in requests]
        try:
            await self.wait(pending)
        except asyncio.CancelledError:
            for each in pending:
                self.stop(each)
            raise
        return [each.answer() for each in pending]

    async def wait(self, pending: Sequence[PendingRequest]) -> None:
        """Wait until all of these have ended."""
        open = [each for each in pending if not each.done]
        if open:
            waiter = Waiter(len(open))
            for each in open:
                each.waiters.append(waiter)
            await waiter.future

    async def some(self, pending: Sequence[PendingRequest]) -> list[PendingRequest]:
        """Wait until some of these have ended; returns them, in the order of `pending`.

        Requests that end in one step of the engine end together.
        """
        if not any(each.done for each in pending):
            waiter = Waiter(1)
            for each in pending:
                each.waiters.append(waiter)
            await waiter.future
            for each in pending:
                if not each.done:
                    each.waiters.remove(waiter)
        return [each for each in pending if each.done]

    def settled(self, outer: bool = False) -> asyncio.Future[None]:
        """Await it to continue when all other coroutines wait, before the engine's next step.

        outer: also those coroutines that wait in this way.
        """
        waiting = self.outer if outer else self.resting
        waiting.append(asyncio.get_running_loop().create_future())
        return waiting[-1]

    def sample(self, requests: Sequence[Request]) -> list[Answer]:
        """The answers to requests, outside of coroutines; this call steps the engine itself.

        Other runs of this engine continue meanwhile. The last event of a failed request says so.
        Raises UserError when all failed.
        """
        with self.open_account() as account:
            pending = [self.begin(request) for request in requests]
            while not all(each.done for each in pending):
                self.step()
            account.ends.check()
            return [each.answer() for each in pending]

    def drop(self, answer: Answer) -> None:
        """A hint: no request continues from this answer, so its cache need not be kept."""
        held = self.prefixes.get(answer.request.weights)
        id = None if held is None else held.id_of(answer.sequence)
        if id is not None:
            account = ACCOUNT.get()
            if id in account.kept:
                account.kept.discard(id)
                self._release(id)

    # ---- from here on: for the event loop

    def busy(self) -> bool:
        """Whether a step has work to do."""
        return bool(self.queue or self.running)

    def step(self, seconds: float = STEP_SECONDS) -> None:
        """Pass requests to the engine as far as it takes them, let it work, and record its events.

        seconds: the longest wait for events of an engine that samples elsewhere; there may be none
        then. Raises RuntimeError where there is no request.
        """
        if not self.busy():
            raise RuntimeError("the engine has nothing to run: begin a request, or return")
        if self.unordered and len(self.queue) > 1:
            self.queue = deque(sorted(self.queue, key=lambda b: (b.request.ids, b.request.seed)))
        while self.queue and len(self.running) < self.engine.most_requests:
            self._hand_on(self.queue.popleft())
        self.before_step()  # an engine that renews alone knows by now which requests continue
        if not self.running:  # all were refused
            return
        broken = []
        for event in self.engine.poll(seconds):
            if (pending := self.running.get(event.request)) is None:
                continue
            if event.ended == "broken":
                broken.append(self.running.pop(event.request))
                event = event._replace(ended="")
            if event.ids or event.ended:
                self._hear(pending, event)
        for pending in broken:
            pending.passes = sum(len(event.experts) for event in pending.events)
        self.queue.extendleft(reversed(broken))

    def idle(self) -> None:
        """Call `before_step` while there is nothing to sample."""
        self.before_step()

    def settle(self, outer: bool = True) -> bool:
        """Wake the coroutines that wait for all others to wait; returns whether there were any.

        outer: if there are none, wake those that wait for these, too.
        """
        if self.resting:
            resting, self.resting = self.resting, []
        elif not outer:
            return False
        else:
            resting, self.outer = self.outer, []
        for future in resting:
            if not future.done():
                future.set_result(None)
        return bool(resting)

    def stop(self, pending: PendingRequest) -> None:
        """End a request now."""
        if pending.done:
            return
        new: list[Event] = []
        if self.running.pop(pending.id, None) is None:
            self.queue.remove(pending)
        else:
            new = self.engine.cancel(pending.id)
        if not new:
            new = [Event(pending.id, (), (), self.version)]
        if new[-1].ended in ("", "broken"):
            new[-1] = new[-1]._replace(ended="aborted")
        for event in new:
            pending.record(event)
        self._end(pending)

    @contextmanager
    def open_account(self, **options: Any) -> Iterator[Account]:
        """Inside, new requests belong to an account, which is closed at the end."""
        account = Account(**options)
        token = ACCOUNT.set(account)
        try:
            yield account
        finally:
            ACCOUNT.reset(token)
            self.close(account)

    def close(self, account: Account) -> None:
        """Stop an account's open requests, and release the caches that are kept for it."""
        for pending in list(account.open):
            self.stop(pending)
        for id in account.kept:
            self._release(id)
        account.kept.clear()
        if not (self.running or self.queue or self.prefixes):
            self.engine.forget()

    # ---- implementation

    def _hand_on(self, pending: PendingRequest) -> None:
        """Give a request to the engine, with a source for the tokens that it has so far."""
        request = pending.rest()
        held = self.prefixes.get(request.weights)
        source = None if held is None else held.find(request.ids)
        if pending.id < 0:
            pending.id, self.next_id = self.next_id, self.next_id + 1
        try:
            self.engine.start(pending.id, request, source)
        except UserError as error:
            pending.refused = error
            self._end(pending)
            return
        self.running[pending.id] = pending

    def _hear(self, pending: PendingRequest, event: Event) -> None:
        pending.record(event)
        if not event.ended:
            return
        del self.running[pending.id]
        account = pending.account
        if event.ended == "failed":
            account.failures.append(event.why)
            account.on_failure(event.why)
        else:
            account.num_well += 1
        if pending.request.keep and event.ended != "failed":
            account.kept.add(pending.id)
            held = self.prefixes.setdefault(pending.request.weights, Prefixes())
            held.add(pending.id, pending.answer().sequence)
        self._end(pending)

    def _end(self, pending: PendingRequest) -> None:
        pending.done = True
        del pending.account.open[pending]
        for waiter in pending.waiters:
            self.woken |= waiter.count()
        pending.waiters.clear()

    def _release(self, id: int) -> None:
        for weights, held in list(self.prefixes.items()):
            if id in held.tokens:
                held.remove(id)
                if not held:
                    del self.prefixes[weights]
        self.engine.cancel(id)


async def gather(work: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run coroutines concurrently; returns their values, in order. If one raises, all end."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        raise


def asynchronous(engine: Engine) -> AsyncEngine:
    """The one AsyncEngine over an engine, created on first use and stored with it."""
    found: AsyncEngine | None = vars(engine).get("_asynchronous")
    if found is None:
        found = vars(engine)["_asynchronous"] = AsyncEngine(engine)
    return found


class _Stepping(selectors.DefaultSelector):
    """Steps the engine while all coroutines wait, until one of them can continue."""

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__()
        self.engine = engine
        self.num_outside = 0  # awaited calls in other threads

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """The ready events; the engine works until there are some."""
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        engine = self.engine
        outside = timeout is not None or self.num_outside or len(self.get_map()) > 1
        # Code that steps the engine itself continues when the engine has work, or when nothing else
        # can bring any.
        if engine.settle(outer=engine.busy() or not outside):
            return ready
        if outside and engine.engine.lockstep:
            engine.unordered = True
            return super().select(timeout)
        if engine.busy():
            engine.woken = False
            while engine.busy() and not engine.woken and not ready:
                engine.step(LOOK_SECONDS if outside else STEP_SECONDS)
                ready = super().select(0)  # another thread may have cancelled a task
                if outside:
                    break
            return ready
        if not outside:
            raise RuntimeError(
                "all coroutines wait, and the engine has nothing to run: begin a request, or return"
            )
        ready = super().select(STEP_SECONDS if timeout is None else min(timeout, STEP_SECONDS))
        engine.while_waiting()
        return ready


class EngineLoop(asyncio.SelectorEventLoop):
    """The event loop of one run, or of several concurrent ones, on one engine."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.stepping = _Stepping(engine)
        super().__init__(self.stepping)

    def elsewhere(self, work: Future[T]) -> asyncio.Future[T]:
        """Make another thread's work awaitable; meanwhile the loop acts as in `run_in_executor`."""
        self.stepping.num_outside += 1
        future = asyncio.wrap_future(work, loop=self)
        future.add_done_callback(self._finished)
        return future

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """As usual; while the call is awaited, the loop sleeps if the engine has nothing to do."""
        self.stepping.num_outside += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._finished)
        return future

    def _finished(self, _: asyncio.Future[Any]) -> None:
        self.stepping.num_outside -= 1

    def __del__(self) -> None:
        """Close the loop if nobody did, such as after an error that left runs in flight."""
        if not self.is_closed():
            self.close()

    def end(self) -> None:
        """Cancel the remaining tasks, and close the loop."""
        left = asyncio.all_tasks(self)
        for task in left:
            task.cancel()
        try:
            if left:
                self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.run_until_complete(self.shutdown_asyncgens())
        finally:
            self.close()


async def elsewhere(work: Future[T]) -> T:
    """Await another thread's work, in the loop of an engine or in another one."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, EngineLoop):
        return await loop.elsewhere(work)
    return await asyncio.wrap_future(work)


async def on(account: Account, work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine whose requests belong to an account."""
    ACCOUNT.set(account)
    return await work


def run(engine: AsyncEngine, work: Coroutine[Any, Any, Any], account: Account) -> Any:
    """Run a coroutine to its end from ordinary code, close its account, and return its value.

    If this thread has a running event loop, as in a notebook, it runs in another thread. Raises
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
    """Run the coroutine in a thread; an interrupt cancels it, and is raised here after its end."""
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
            found.set_result(value)  # only now, when this thread no longer uses the engine

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(go,), daemon=True)
    try:
        thread.start()
        return found.result()
    except KeyboardInterrupt:
        with contextlib.suppress(RuntimeError):  # the loop has already ended
            loop.call_soon_threadsafe(task.cancel)
        found.exception()
        raise
