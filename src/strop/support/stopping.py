"""Handles Ctrl-C, a preemption (SIGTERM) and a lost terminal (SIGHUP) in a run."""

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
AGAIN_SECONDS = 1.0  # `timeout`, and a shell that hangs up, send two signals for one request
AFTER_SECONDS = 0.02  # delay after which a lost interrupt is sent again
_heeded = [-math.inf]  # when a signal was handled last
_inside: list[Any] = []  # handlers of the open contexts


@contextmanager
def interrupting() -> Iterator[None]:
    """Make SIGTERM and SIGHUP inside the context raise KeyboardInterrupt, as Ctrl-C does."""

    def handle(number: int, frame: Any) -> None:
        if not _same_wish(number):
            raise KeyboardInterrupt

    with _handled(handle):
        yield


@contextmanager
def asking_first(ask: Callable[[], None]) -> Iterator[None]:
    """Make the first signal inside the context call `ask`, and a later one stop at once.

    The later one raises KeyboardInterrupt.
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
    """Whether a signal other than Ctrl-C repeats one that was handled a moment ago.

    Contexts are nested, and the second signal may come after the first has ended the inner one.
    """
    now = time.monotonic()
    same = number != signal.SIGINT and now - _heeded[-1] <= AGAIN_SECONDS
    if not same:
        _heeded[:] = [now]
    return same


@contextmanager
def holding(number: int) -> Iterator[None]:
    """Keep a signal's handler inside the context, even if a library installs another one.

    A handler that is installed from Python is ignored; another one ends with the context.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python installs handlers only in the main thread
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
    """Add a text to an interrupt inside the context: what is saved, and how to resume.

    The innermost context sets it, since it knows most; the command line prints it.
    """
    try:
        yield
    except KeyboardInterrupt as stopped:
        stopped.args = stopped.args or (kept(),)
        raise


def deafen() -> None:
    """Ignore SIGTERM and SIGHUP in this process from now on; it is about to end.

    torchrun sends SIGTERM to all processes as soon as one has died, and the other processes'
    messages about it must not be lost.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def settled() -> Iterator[None]:
    """Make the garbage collector ignore all existing objects inside the context.

    Libraries, model and data are some 600,000 objects: scanning them takes a third of a second each
    time, and steps with many episodes caused that every other step. Where longer-lived code has
    frozen objects already, such as a test runner, nothing changes.
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
    """A hook for errors that no caller sees, such as in `__del__`: it resends an interrupt."""

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
    """Make the three signals call `handle` inside the context; a hang-up under nohup stays ignored.

    A handler that was set inside in place of `handle` stays, see `deafen`.
    """
    handled: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    if threading.current_thread() is not threading.main_thread():
        handled = ()  # only the main thread may set handlers
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
