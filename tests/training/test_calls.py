"""One thread finds out which line another one executes, while that works."""

import os
import threading
import time
from collections.abc import Iterator

from strop.training.parallel.watchdog import Call, Calls


def down(depth: int) -> Iterator[int]:
    """Frames that come and go, of functions and generators."""
    yield depth
    if depth:
        yield from down(depth - 1)


def test_the_line_that_runs_and_who_called_it():
    over = threading.Event()

    def stand() -> None:
        over.wait()

    def call() -> None:
        stand()

    other, end = threading.Thread(target=call), time.monotonic() + 60
    other.start()
    calls = Calls(other.ident)
    lines = [each.__code__.co_firstlineno + 1 for each in (stand, call)]
    while [c.line for c in calls.now() if c.path == __file__] != lines:
        assert time.monotonic() < end
    assert calls.now()[0].path == threading.__file__
    over.set()
    other.join()


def test_a_thread_at_work_can_be_looked_at_all_the_time():
    """Its frames come and go meanwhile, those of `down` among them."""
    first = down.__code__.co_firstlineno
    working = {Call(__file__, line) for line in range(first, first + 5)}
    seen, found, end = [], [], time.monotonic() + 60

    def look(calls: Calls) -> None:
        while len(found) < 20:
            seen.append(calls.now())
            found.extend([*working.intersection(seen[-1])][:1])

    lookers = [threading.Thread(target=look, args=(Calls(threading.get_ident()),)) for _ in "ab"]
    for each in lookers:
        each.start()
    while len(found) < 20:
        assert sum(down(20)) == 210
        assert time.monotonic() < end
    for each in lookers:
        each.join()
    assert all(call.line for calls in seen for call in calls)


def test_a_thread_that_is_not_there_is_nowhere():
    assert Calls(1).now() == []


def test_where_nothing_can_be_written_nothing_is_known():
    calls = Calls(threading.get_ident())
    with open("/dev/null", "r+b") as nothing:
        os.dup2(nothing.fileno(), calls.file)
    assert calls.now() == []
