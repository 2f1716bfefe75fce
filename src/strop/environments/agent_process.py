"""The process that imports the user's file and forks an agent for each episode.

An agent is a function that is called with a row and returns its reward. It runs in its own process
and session, so that its environment holds the address and the key of one episode, and so that
every process that it started can be ended with it.

    in    ("begin", number, row, environment), ("end", number)
    out   ("ready", why not), ("ended", number, Outcome)
"""

import asyncio
import inspect
import math
import numbers
import os
import pickle
import re
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from strop.environments.episodes import is_transient
from strop.rewards.scored import plain
from strop.support import guarded_process
from strop.support.errors import in_words
from strop.support.garbage_collection import importing
from strop.support.loading import attribute, where_raised
from strop.support.output import Lasting
from strop.support.processes import end_descendants
from strop.traces.records import Rollout

FRAMES = 6  # outermost ones of a traceback that are written: those of the agent
SHOWN = 500  # characters of an error, or of a result that is no reward


class Outcome(NamedTuple):
    """How an agent's call ended. kind: it "returned" the value, a finite number, numbers by name or
    None; it returned something "unreadable"; it "raised" or "died", or was "late"; or it was "lost"
    through no fault of its own.
    """

    kind: str
    value: Any = None
    why: str = ""
    transient: bool = False  # it raised a transient error
    timed_out: bool = False  # the error is a limit of time
    trace: str = ""  # of the error that it raised
    rollout: Rollout | None = None  # its calls, where the server that played it recorded them


def main(channel: socket.socket) -> None:
    """Fork an agent for each episode that a socket announces, until its other end closes."""
    sys.stdout, sys.stderr = Lasting(sys.stderr), Lasting(sys.stderr)
    search, name = pickle.loads(guarded_process.receive(channel))
    sys.path += [place for place in search if place not in sys.path]
    why = ""
    try:
        with importing():
            attribute(name)
    except BaseException as error:  # the user's file may raise anything, SystemExit too
        why = in_words(error)
    _tell(channel, ("ready", why))
    Nursery(channel, name).serve()


class Nursery:
    """The running agents. It has one thread, so that forking is safe."""

    def __init__(self, channel: socket.socket, name: str) -> None:
        self.channel, self.name = channel, name
        self.selector = selectors.DefaultSelector()
        self.selector.register(channel, selectors.EVENT_READ)
        self.running: dict[int, Running] = {}
        self.shown = set[str]()  # words of errors whose traceback was written

    def serve(self) -> None:
        """Handle messages until the other end closes; the guard then ends the remaining agents."""
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is not self.channel:
                    self._bury(key.data)
                    continue
                try:
                    what, number, *given = pickle.loads(guarded_process.receive(self.channel))
                except EOFError:
                    os._exit(0)
                if what == "begin":
                    self._begin(number, *given)
                elif number in self.running:
                    _end(self.running[number].pid)

    def _begin(self, number: int, row: Any, environment: dict[str, str]) -> None:
        output = os.memfd_create("strop-agent")
        pid = os.fork()
        if pid == 0:
            os.setsid()
            self.selector.close()
            self.channel.close()
            _work(self.name, row, environment, output)
        ended = os.pidfd_open(pid)
        self.running[number] = Running(pid, ended, output)
        self.selector.register(ended, selectors.EVENT_READ, number)

    def _bury(self, number: int) -> None:
        """Send the outcome of an agent that has ended, and end the processes that it left."""
        pid, ended, output = self.running.pop(number)
        self.selector.unregister(ended)
        os.close(ended)
        _end(pid)
        _, status = os.waitpid(pid, 0)
        with os.fdopen(output, "rb") as file:
            file.seek(0)
            outcome = _read(file.read(), status)
        words = re.sub(r"\d+", "", outcome.why)
        if outcome.trace and words not in self.shown:
            self.shown.add(words)
            sys.stderr.write(f"{outcome.trace}(later errors with these words are counted only)\n")
            sys.stderr.flush()
        _tell(self.channel, ("ended", number, outcome._replace(trace="")))


class Running(NamedTuple):
    """An agent. ended: a descriptor that is readable once it has; said: a file for its outcome."""

    pid: int
    ended: int
    said: int


def _end(pid: int) -> None:
    """End an agent with all processes that it started."""
    end_descendants(pid)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _read(output: bytes, status: int) -> Outcome:
    if output:
        with suppress(Exception):  # it was ended while it wrote
            return pickle.loads(output)
    if os.WIFSIGNALED(status):
        return Outcome("died", why=f"it was ended by {signal.Signals(os.WTERMSIG(status)).name}")
    return Outcome("died", why=f"it ended itself with exit code {os.WEXITSTATUS(status)}")


def _tell(channel: socket.socket, message: Any) -> None:
    try:
        guarded_process.send(channel, pickle.dumps(message))
    except ConnectionError:  # the receiver is gone
        os._exit(1)


def _work(name: str, row: Any, environment: dict[str, str], file: int) -> None:
    """Call the agent's function, write its outcome, and end this process."""
    os.environ.update(environment)
    for module in ("numpy.random", "torch"):  # a fork seeds Python's own generator anew, not these
        if module in sys.modules:
            sys.modules[module].seed()
    try:
        found = attribute(name)(row)
        if inspect.isawaitable(found):
            found = asyncio.run(_awaited(found))
        outcome = _returned(found)
    except BaseException as error:  # the user's function may raise anything, SystemExit too
        outcome = _raised(error)
    sys.stderr.flush()
    with os.fdopen(file, "wb") as written:
        written.write(pickle.dumps(outcome))
    os._exit(0)


def _raised(error: BaseException) -> Outcome:
    """The outcome of an error; of several, as `asyncio.TaskGroup` raises them, the first one's."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = [each for each in traceback.format_tb(error.__traceback__) if __file__ not in each]
    trace = "".join([*frames[:FRAMES], f"{in_words(error)}\n"])
    why = f"{_cut(in_words(error))} ({where_raised(error)})"
    return Outcome(
        "raised", why=why, transient=is_transient(error), timed_out=_timed_out(error), trace=trace
    )


def _timed_out(error: BaseException) -> bool:
    """Whether an error, or one that it was raised from, is a limit of time. Clients have classes of
    their own for it, and not all of them derive from TimeoutError: they have only the word.
    """
    if any("Timeout" in kind.__name__ for kind in type(error).__mro__):
        return True
    return error.__cause__ is not None and _timed_out(error.__cause__)


def _returned(found: Any) -> Outcome:
    """The outcome of a returned value, in types that the other end has without the user's file.

    Raises whatever the value raises.
    """
    value: Any = None
    if isinstance(found, Mapping):
        value = {str(name): _number(each) for name, each in found.items()}
        parts = list(value.values())
    else:
        value = _number(found)
        parts = [value]
    if all(each is None or (isinstance(each, float) and math.isfinite(each)) for each in parts):
        return Outcome("returned", value)
    return Outcome("unreadable", why=_cut(repr(found)))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def _number(value: Any) -> Any:
    """A number of any library as a float; anything else unchanged."""
    value = plain(value)
    if not isinstance(value, numbers.Real):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf


async def _awaited(found: Any) -> Any:
    return await found
