"""The loop of coroutines on an engine: progress while others wait, nesting, and ends."""

import asyncio
import contextlib
import gc
import signal
import threading
import time
import warnings

import pytest
from fakes.coroutines import check_closed, go, requests, table, told
from fakes.engine import streamed

from strop.engines.asynchronous import EngineLoop, asynchronous, gather, on
from strop.engines.base import Account, Request

# ---- inside and beside


def test_ordinary_code_samples_inside_a_coroutine(engine):
    """The outer requests go on meanwhile, and lose nothing."""
    book, account, inner = asynchronous(engine), Account(), []
    asked = requests(6)

    async def asks(request):
        answer = await book.generate(request)
        inner.append(book.sample([Request((5, 6), 5, seed=request.seed)])[0])
        return answer

    expected = book.sample(asked)
    found = go(engine, gather(asks(request) for request in asked), account)
    assert told(found) == told(expected)
    assert account.num_started == 6  # the inner ones are not on it
    assert account.num_drawn == sum(len(answer.ids) for answer in found)
    by_seed = sorted(inner, key=lambda answer: answer.request.seed)
    assert told(by_seed) == told(book.sample([answer.request for answer in by_seed]))
    check_closed(engine)


def test_a_run_inside_a_run_is_refused(engine):
    book = asynchronous(engine)

    async def nests():
        go(engine, book.generate(Request((3,), 2)))

    with pytest.raises(RuntimeError, match="cannot run another one: await it"):
        go(engine, nests())
    check_closed(engine)


def test_waiting_for_nothing_is_an_error(engine):
    async def waits():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="all coroutines wait, and the engine has nothing"):
        go(engine, waits())
    with pytest.raises(RuntimeError, match="the engine has nothing to run"):
        asynchronous(engine).step()
    check_closed(engine)


def test_other_waits_do_not_stop_the_engine(engine):
    """It works on for the others while a timer or another thread is waited for."""
    book, release, steps = asynchronous(engine), threading.Event(), []

    async def sleeps():
        await asyncio.sleep(0.05)
        return "slept"

    async def in_a_thread():
        return await asyncio.to_thread(release.wait, 20)

    async def draws():
        answer = await book.generate(Request((3, 4), 30, seed=2))
        steps.append(len(answer.ids))
        release.set()  # the thread waits for what the engine draws
        return answer

    slept, released, answer = go(engine, gather([sleeps(), in_a_thread(), draws()]))
    assert (slept, released, steps) == ("slept", True, [30])
    assert told([answer]) == told(book.sample([answer.request]))

    async def then_draws():  # nothing is drawn while it sleeps
        await asyncio.sleep(0.01)
        await asyncio.to_thread(time.sleep, 0.01)
        return await book.generate(answer.request)

    assert told([go(engine, then_draws())]) == told([answer])


def test_signs_of_life_while_nothing_is_sampled(engine):
    """All wait for another thread, such as that of an environment or of an agent."""
    release = threading.Event()
    asynchronous(engine).while_waiting = release.set

    async def in_a_thread():
        return await asyncio.to_thread(release.wait, 5)

    assert go(engine, in_a_thread())


def test_a_wait_with_a_limit(engine):
    book = asynchronous(engine)

    async def limited():
        started = book.begin(Request((3,), 100, stop_ids=()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.0):
                await started
        assert not started.done
        return started.stop()

    assert go(engine, limited()).ended == "aborted"


def test_two_runs_beside_each_other(engine):
    """Each on its own account, as those of several groups of rollouts."""
    book, asked = asynchronous(engine), requests(6)
    expected = book.sample(asked)
    loop, accounts = EngineLoop(book), [Account(), Account()]
    shares = [asked[:2], asked[2:]]
    tasks = [
        loop.create_task(on(account, book.generate_all(share)))
        for account, share in zip(accounts, shares, strict=True)
    ]

    async def turn():
        await book.settled(outer=True)
        if not all(task.done() for task in tasks):
            book.step()

    turns = 0
    while not all(task.done() for task in tasks):
        loop.run_until_complete(turn())
        turns += 1
    assert told([*tasks[0].result(), *tasks[1].result()]) == told(expected)
    assert turns > 1 + max(len(answer.ids) for answer in expected[:2])
    assert [account.num_started for account in accounts] == [2, 4]
    for account, share in zip(accounts, (expected[:2], expected[2:]), strict=True):
        assert account.num_drawn == sum(len(answer.ids) for answer in share)
        book.close(account)
    loop.end()
    check_closed(engine)


def test_new_weights_between_steps_show_in_the_answer():
    engine = table()
    book = asynchronous(engine)
    book.before_step = lambda: engine.load_weights(None, engine.num_steps)
    (answer,) = book.sample([Request((3,), 4)])
    assert [event.version for event in answer.events] == [0, 1, 2, 3]


# ---- a notebook


def test_beside_a_running_loop_as_in_a_notebook(engine):
    """The loop of the notebook is another one; what is there goes on afterwards."""
    book, asked = asynchronous(engine), requests(5)
    expected = book.sample(asked)

    async def asks():
        await asyncio.sleep(0)
        return await book.generate_all(asked)

    async def main():
        here = asyncio.get_running_loop()
        found = go(engine, asks())
        assert asyncio.get_running_loop() is here
        with pytest.raises(ValueError, match="in a cell"):
            go(engine, raises())
        await asyncio.sleep(0)
        return found, go(engine, asks()), book.sample(asked)

    async def raises():
        await book.generate(Request((3,), 2))
        raise ValueError("in a cell")

    for found in asyncio.run(main()):
        assert told(found) == told(expected)
    check_closed(engine)


@pytest.mark.parametrize("size", [3, 90])
def test_an_interrupt_in_a_notebook_cancels(engine, size, monkeypatch):
    """In the middle of an answer too."""
    book, account, ended, poll = asynchronous(engine), Account(), [], engine.poll
    monkeypatch.setattr(engine, "poll", lambda *given: (time.sleep(0.01), poll(*given))[1])

    async def endless():
        assert threading.current_thread() is not threading.main_thread()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        try:
            while True:
                await book.generate(Request((3, 4), size))
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def main():
        with pytest.raises(KeyboardInterrupt):
            go(engine, endless(), account)
        assert account.num_drawn < 60
        return told(go(engine, book.generate_all(requests(2))))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    loop = asyncio.new_event_loop()  # as a notebook's, which takes interrupts as they come
    try:
        found = loop.run_until_complete(main())
    finally:
        signal.signal(signal.SIGINT, before)
        loop.close()
    assert ended == ["cancelled"]
    assert found == told(book.sample(requests(2)))
    check_closed(engine)


def test_an_interrupt_ends_a_run(engine):
    book = asynchronous(engine)

    async def interrupted():
        started = book.begin(Request((3, 4), 90, keep=True))
        await book.generate(Request((3, 4), 3))
        signal.raise_signal(signal.SIGINT)
        await started

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            go(engine, interrupted())
    finally:
        signal.signal(signal.SIGINT, before)
    check_closed(engine)


def test_nothing_is_left_open(engine):
    """Neither loops nor tasks nor coroutines: these warn when they are discarded."""
    book = asynchronous(engine)

    async def beside_it():
        return go(engine, book.generate_all(requests(2)))

    async def leaves_a_stream():
        stream = streamed(book, Request((3, 4), 9), 2)
        left = asyncio.ensure_future(book.generate(Request((3,), 50)))
        answer = await anext(stream)
        assert not left.done()
        return answer

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        go(engine, book.generate_all(requests(3)))
        asyncio.run(beside_it())
        assert len(go(engine, leaves_a_stream()).ids) == 2
        gc.collect()
    check_closed(engine)
