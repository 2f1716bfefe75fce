"""What Ctrl-C, a preemption (SIGTERM) and a lost terminal (SIGHUP) do to a run."""

import gc
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from strop.support.garbage_collection import loaded, may_choose

INTERRUPTED = 130  # exit code of a command that a signal has stopped
AGAIN_SECONDS = 1.0  # `timeout`, and a shell that hangs up, send one wish twice in a moment
AFTER_SECONDS = 0.02  # an interrupt that nobody saw comes again
_heeded = [-math.inf]  # when a signal was heeded last
_inside: list[Any] = []  # handlers of the blocks that are open


@contextmanager
def interrupting() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does."""

    def handle(number: int, frame: Any) -> None:
        if not _same_wish(number):
            raise KeyboardInterrupt

    with _handled(handle):
        yield


@contextmanager
def asking_first(ask: Callable[[], None]) -> Iterator[None]:
    """Inside, the first signal calls `ask`, and one after that stops at once.

    Raises KeyboardInterrupt then.
    """
    asked: list[int] = []

    def handle(number: int, frame: Any) -> None:
        if _same_wish(number):
            return
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        ask()

    with _handled(handle):
        yield


def _same_wish(number: int) -> bool:
    """Whether a signal, which is no Ctrl-C, comes in a moment after another one that was heeded.

    Blocks lie in each other, and the second may come when the first has ended the inner one.
    """
    now = time.monotonic()
    same = number != signal.SIGINT and now - _heeded[-1] <= AGAIN_SECONDS
    if not same:
        _heeded[:] = [now]
    return same


@contextmanager
def holding(number: int) -> Iterator[None]:
    """Inside, a signal does what it did before, whatever handler a library installs for it.

    A handler that is installed from Python is passed over; one that is not ends with the block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # where Python installs none
        return
    handled, install = signal.getsignal(number), signal.signal

    def install_others(signalnum: int, handler: Any) -> Any:
        return handled if signalnum == number else install(signalnum, handler)

    signal.signal = install_others
    try:
        yield
    finally:
        signal.signal = install
        if handled is not None:
            install(number, handled)


@contextmanager
def explained(kept: Callable[[], str]) -> Iterator[None]:
    """Inside, an interrupt bears a text: what is kept, and how to go on.

    The innermost block decides, for it knows most; the command line prints it.
    """
    try:
        yield
    except KeyboardInterrupt as stopped:
        stopped.args = stopped.args or (kept(),)
        raise


def deafen() -> None:
    """From now on SIGTERM and SIGHUP do nothing in this process, which is about to end.

    torchrun sends SIGTERM to all processes as soon as one has died, and what the others say about
    it must not be lost.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def settled() -> Iterator[None]:
    """Inside, the garbage collector leaves alone what is there already.

    Libraries, model and data are some 600,000 objects: to pass over them takes a third of a second
    each time, which steps with many episodes made it do every other step. A longer-lived process
    that has chosen what is left alone, as one that runs tests, goes on with that.
    """
    loaded()
    chooses = may_choose()
    if chooses:
        gc.freeze()
    try:
        yield
    finally:
        if chooses:
            gc.unfreeze()


def _sent_again(otherwise: Callable[[Any], Any]) -> Callable[[Any], None]:
    """What an error becomes that no caller sees, as one in `__del__`: an interrupt comes again."""

    def hook(lost: Any) -> None:
        if lost.exc_type is not KeyboardInterrupt:
            otherwise(lost)
            return
        again = threading.Timer(AFTER_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()

    return hook


@contextmanager
def _handled(handle: Callable[[int, Any], None]) -> Iterator[None]:
    """Inside, the three signals call `handle`; a hang-up under nohup stays ignored.

    What has been set inside in place of `handle` stays, see `deafen`.
    """
    handled: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    if threading.current_thread() is not threading.main_thread():
        handled = ()  # only the main thread may: its owner decides what an interrupt means
    elif not _inside:
        _heeded[:] = [-math.inf]
    _inside.append(handle)
    before: dict[int, Any] = {}
    lost = sys.unraisablehook
    if handled:
        sys.unraisablehook = _sent_again(lost)
    for number in handled:
        ignored = signal.getsignal(number) is signal.SIG_IGN
        if number == signal.SIGINT or not ignored:
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        _inside.remove(handle)
        if handled:
            sys.unraisablehook = lost
        for number, earlier in before.items():
            if signal.getsignal(number) == handle:
                signal.signal(number, earlier)
