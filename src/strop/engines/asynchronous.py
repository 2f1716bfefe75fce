"""The engine that strategies are handed: requests are awaited, and their order changes nothing.

One book of requests stands over every engine: what was begun, what came of it, and whose cache a
new request may go on from. An engine beneath it starts a request, cancels one, works for a while.
The event loop of the coroutines, at the end, lets it work where an ordinary one would sleep.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import selectors
import threading
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
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


ACCOUNT: ContextVar[Account] = ContextVar("account")


class Begun:
    """A request on its way: await it for its Answer. `done`: its end has been told."""

    def __init__(self, book: AsyncEngine, request: Request, account: Account) -> None:
        self.book, self.request, self.account = book, request, account
        self.id = -1  # at the engine; -1: that never had it
        self.events: list[Event] = []
        self.passes = 0  # told before it was begun again: the engine tells them anew
        self.done = False
        self.refused: UserError | None = None
        self.waiters: list[Waiter] = []

    def answer(self) -> Answer:
        """What came of it so far. Raises UserError where the engine refused it."""
        if self.refused is not None:
            raise self.refused
        return Answer(self.request, tuple(self.events))

    def rest(self) -> Request:
        """What is still to be drawn."""
        if not self.events:
            return self.request
        answer = self.answer()
        return answer.more(self.request.max_tokens - len(answer.ids))

    def stop(self) -> Answer:
        """End it now; what it has drawn is in the answer, which has ended as "aborted"."""
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
        """One more has ended; whether this was the last one that it waits for."""
        self.left -= 1
        if self.left or self.future.done():
            return False
        self.future.set_result(None)
        return True


class AsyncEngine:
    """Draws answers for coroutines, on one engine; several runs may share it.

    What is drawn depends on (seed, position, weights) alone, so an answer is the same whatever runs
    beside it. A request that begins with all tokens, or some, of one of the same weights that
    ended with `keep` goes on from its cache, found by content. before_step: called before the
    engine works.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.before_step: Callable[[], None] = lambda: None
        self.queue: deque[Begun] = deque()  # the engine does not have them
        self.running: dict[int, Begun] = {}  # it has them
        self.next_id = 0
        self.prefixes: dict[str, Prefixes] = {}  # by the weights that they were drawn with
        self.resting: list[asyncio.Future[None]] = []
        self.outer: list[asyncio.Future[None]] = []  # who waits for these too
        self.woken = False  # a coroutine may go on
        # Coroutines have waited for other things than requests, which several processes hear of in
        # different orders; what they begin then has an order of its own.
        self.unordered = False

    @property
    def capabilities(self) -> frozenset[str]:
        """What it can do beside sampling, out of `base.CAPABILITIES`."""
        return self.engine.capabilities

    @property
    def version(self) -> int:
        """Of the weights that sample now."""
        return self.engine.version

    def begin(self, request: Request) -> Begun:
        """Queue a request. Raises UserError where the engine lacks a capability for it."""
        wanted = {need for name, need in NEEDS.items() if getattr(request, name)} | request.want
        if lacking := sorted(wanted - self.engine.capabilities):
            raise UserError(
                f"the strategy needs an engine with {lacking[0]!r}; "
                f"{type(self.engine).__name__} has {sorted(self.engine.capabilities)}"
            )
        account = ACCOUNT.get()
        begun = Begun(self, request, account)
        account.open[begun] = None
        account.num_begun += 1
        self.queue.append(begun)
        return begun

    async def generate(self, request: Request) -> Answer:
        """The answer to a request; cancelled, it is drawn no further."""
        return (await self.generate_all([request]))[0]

    async def generate_all(self, requests: Sequence[Request]) -> list[Answer]:
        """The answers to requests that are drawn beside each other, in the order of these.

        Cancelled, they are drawn no further.
        """
        begun = [self.begin(request) for request in requests]
        try:
            await self.wait(begun)
        except asyncio.CancelledError:
            for each in begun:
                self.stop(each)
            raise
        return [each.answer() for each in begun]

    async def stream(self, request: Request, every: int) -> AsyncIterator[Answer]:
        """The answer so far after every so many new tokens, and whole at last.

        The next piece is drawn once it is asked for.
        """
        answer, left, whole = Answer(request, ()), request.max_tokens, True
        while whole and left:
            room = min(every, left)
            piece = await self.generate(answer.more(room, keep=True))
            whole, left = piece.ended == "length" and len(piece.ids) == room, left - room
            answer += piece
            yield answer

    async def wait(self, begun: Sequence[Begun]) -> None:
        """Wait until all of these have ended."""
        open = [each for each in begun if not each.done]
        if open:
            waiter = Waiter(len(open))
            for each in open:
                each.waiters.append(waiter)
            await waiter.future

    async def some(self, begun: Sequence[Begun]) -> list[Begun]:
        """Wait until some of these have ended: those, in the order of `begun`.

        What ends in one step of the engine ends at once.
        """
        if not any(each.done for each in begun):
            waiter = Waiter(1)
            for each in begun:
                each.waiters.append(waiter)
            await waiter.future
            for each in begun:
                if not each.done:
                    each.waiters.remove(waiter)
        return [each for each in begun if each.done]

    def settled(self, outer: bool = False) -> asyncio.Future[None]:
        """Await it to go on when all other coroutines wait, before the engine's next step.

        outer: also those that wait in this way.
        """
        waiting = self.outer if outer else self.resting
        waiting.append(asyncio.get_running_loop().create_future())
        return waiting[-1]

    def sample(self, requests: Sequence[Request]) -> list[Answer]:
        """The answers to requests, outside of coroutines; it steps the engine itself.

        Other runs of this engine go on meanwhile. The last event of a request that failed says so.
        Raises UserError when all did.
        """
        with self.open_account() as account:
            begun = [self.begin(request) for request in requests]
            while not all(each.done for each in begun):
                self.step()
            account.ends.check()
            return [each.answer() for each in begun]

    def drop(self, answer: Answer) -> None:
        """A hint: nothing goes on from this answer, so its cache need not be held."""
        held = self.prefixes.get(answer.request.weights)
        id = None if held is None else held.id_of(answer.sequence)
        if id is not None:
            account = ACCOUNT.get()
            if id in account.kept:
                account.kept.discard(id)
                self._release(id)

    # ---- from here on: for those who run coroutines

    def busy(self) -> bool:
        """Whether a step can bring something."""
        return bool(self.queue or self.running)

    def step(self, seconds: float | None = None) -> None:
        """Hand requests on as far as the engine takes them, let it work, and tell what came.

        seconds: the longest that it waits for what is drawn elsewhere; None: until some comes.
        Raises RuntimeError where nothing is there to work on.
        """
        if not self.busy():
            raise RuntimeError("the engine has nothing to run: begin a request, or return")
        if self.unordered and len(self.queue) > 1:
            self.queue = deque(sorted(self.queue, key=lambda b: (b.request.ids, b.request.seed)))
        while self.queue and len(self.running) < self.engine.most_requests:
            self._hand_on(self.queue.popleft())
        self.before_step()  # an engine that renews alone knows by now what goes on
        if not self.running:  # all were refused
            return
        broken = []
        for event in self.engine.poll(seconds):
            if (begun := self.running.get(event.request)) is None:
                continue
            if event.ended == "broken":
                broken.append(self.running.pop(event.request))
                event = event._replace(ended="")
            if event.ids or event.ended:
                self._hear(begun, event)
        for begun in broken:
            begun.passes = sum(len(event.experts) for event in begun.events)
        self.queue.extendleft(reversed(broken))

    def idle(self) -> None:
        """Do what is done before each step, while there is nothing to draw for now."""
        self.before_step()

    def settle(self, outer: bool = True) -> bool:
        """Let those go on who wait for all others to wait; whether there were any.

        outer: also those that wait for these, too.
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

    def stop(self, begun: Begun) -> None:
        """End a request now."""
        if begun.done:
            return
        new: list[Event] = []
        if self.running.pop(begun.id, None) is None:
            self.queue.remove(begun)
        else:
            new = self.engine.cancel(begun.id)
        if not new:
            new = [Event(begun.id, (), (), self.version)]
        if new[-1].ended in ("", "broken"):
            new[-1] = new[-1]._replace(ended="aborted")
        for event in new:
            begun.events.append(event)
            begun.account.num_drawn += len(event.ids)
        self._end(begun)

    @contextmanager
    def open_account(self, **options: Any) -> Iterator[Account]:
        """Inside, requests are begun on an account, which is closed at the end."""
        account = Account(**options)
        token = ACCOUNT.set(account)
        try:
            yield account
        finally:
            ACCOUNT.reset(token)
            self.close(account)

    def close(self, account: Account) -> None:
        """Stop what an account has open, and let the caches go that are held for it."""
        for begun in list(account.open):
            self.stop(begun)
        for id in account.kept:
            self._release(id)
        account.kept.clear()
        if not (self.running or self.queue or self.prefixes):
            self.engine.forget()

    # ---- from here on: how

    def _hand_on(self, begun: Begun) -> None:
        """Give a request to the engine, with the place of the tokens that it has by now."""
        request = begun.rest()
        held = self.prefixes.get(request.weights)
        source = None if held is None else held.find(request.ids)
        if begun.id < 0:
            begun.id, self.next_id = self.next_id, self.next_id + 1
        try:
            self.engine.start(begun.id, request, source)
        except UserError as error:
            begun.refused = error
            self._end(begun)
            return
        self.running[begun.id] = begun

    def _hear(self, begun: Begun, event: Event) -> None:
        if begun.passes and event.experts:
            event, begun.passes = event._replace(experts=event.experts[begun.passes :]), 0
        begun.events.append(event)
        account = begun.account
        account.num_drawn += len(event.ids)
        if not event.ended:
            return
        del self.running[begun.id]
        if event.ended == "failed":
            account.failures.append(event.why)
            account.on_failure(event.why)
        else:
            account.num_well += 1
        if begun.request.keep and event.ended != "failed":
            account.kept.add(begun.id)
            held = self.prefixes.setdefault(begun.request.weights, Prefixes())
            held.add(begun.id, begun.answer().sequence)
        self._end(begun)

    def _end(self, begun: Begun) -> None:
        begun.done = True
        del begun.account.open[begun]
        for waiter in begun.waiters:
            self.woken |= waiter.count()
        begun.waiters.clear()

    def _release(self, id: int) -> None:
        for weights, held in list(self.prefixes.items()):
            if id in held.tokens:
                held.remove(id)
                if not held:
                    del self.prefixes[weights]
        self.engine.cancel(id)


async def gather(work: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run coroutines beside each other; their values, in order. Where one raises, all end."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        raise


def asynchronous(engine: Engine) -> AsyncEngine:
    """The one AsyncEngine over an engine, which goes with it."""
    found: AsyncEngine | None = vars(engine).get("_asynchronous")
    if found is None:
        found = vars(engine)["_asynchronous"] = AsyncEngine(engine)
    return found


LOOK_SECONDS = 0.02  # at what else is awaited, while requests are drawn elsewhere


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
        outside = timeout is not None or self.num_outside or len(self.get_map()) > 1
        # Who steps the engine itself goes on when it has work, or nothing else can bring any.
        if engine.settle(outer=engine.busy() or not outside):
            return ready
        if outside and engine.engine.lockstep:
            engine.unordered = True
            return super().select(timeout)
        if engine.busy():
            engine.woken = False
            while engine.busy() and not engine.woken:
                engine.step(LOOK_SECONDS if outside else None)
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

    def elsewhere(self, work: Future[T]) -> asyncio.Future[T]:
        """What another thread does, to be awaited; meanwhile as in `run_in_executor`."""
        self.stepping.num_outside += 1
        future = asyncio.wrap_future(work, loop=self)
        future.add_done_callback(self._finished)
        return future

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """As ever; while it is awaited, the loop sleeps where the engine has nothing to do."""
        self.stepping.num_outside += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._finished)
        return future

    def _finished(self, _: asyncio.Future[Any]) -> None:
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


async def elsewhere(work: Future[T]) -> T:
    """Await what another thread does, in the loop of an engine or in another one."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, EngineLoop):
        return await loop.elsewhere(work)
    return await asyncio.wrap_future(work)


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
