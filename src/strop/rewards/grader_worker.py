"""The process that runs reward functions: it answers one request after the other over a socket.

A reward's output goes to the error stream; the socket is the only channel of results. The process
ends as soon as the other end closes; its guard then ends the processes that a reward started.
"""

import builtins
import json
import os
import pickle
import queue
import random
import signal
import socket
import sys
import threading
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from strop.rewards.function import RewardFunction, load_reward
from strop.rewards.scored import Rollouts
from strop.support import guarded_process
from strop.support.errors import UserError, in_words
from strop.support.garbage_collection import importing
from strop.support.loading import importers, where_raised
from strop.support.output import Lasting


def main(channel: socket.socket) -> None:
    """Serve the requests that arrive on a socket until the other end closes."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _parent_decides(os.getpid()))
    sys.stdout, sys.stderr = Lasting(sys.stdout), Lasting(sys.stderr)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(channel, requests), daemon=True).start()
    speech = _Speech(channel)
    server = _Server(speech)
    while True:
        request = requests.get()
        speech.number = request["number"]
        reply = server.answer(request)
        try:
            speech.send(reply)
        except (TypeError, ValueError, RecursionError) as error:  # for a key, or for its depth
            speech.send({"exception": f"what the reward logged cannot be written: {error}"})


class _Speech:
    """Sends messages to the parent: replies, and when a call starts and stops importing modules.

    The parent counts the time of imports separately, so it must know of imports inside functions
    too. An object of this class replaces `__import__`.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.channel, self.number = channel, 0
        self.seed = ""  # of the current call
        self.is_calling = False
        self.depth = 0  # of imports inside imports
        self.lock = threading.RLock()  # a reward's own threads import too
        self.process = os.getpid()  # its forks send nothing
        self.plain = builtins.__import__
        builtins.__import__ = self
        importers.add(__file__)

    def send(self, reply: dict[str, Any]) -> None:
        """Send a reply to the current request."""
        with self.lock:
            content = json.dumps({**reply, "number": self.number}, default=_plain)
            try:
                guarded_process.send(self.channel, content.encode())
            except ConnectionError:  # the parent was killed
                os._exit(1)

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function and report its imports."""
        self.is_calling, self.depth = True, 0
        try:
            return function()
        finally:
            with self.lock:  # nothing is sent after the reply
                self.is_calling = False

    def __call__(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        given = (name, globals, locals, fromlist, level)
        if level or name in sys.modules or not self.is_calling or os.getpid() != self.process:
            return self.plain(*given)
        absent = [library for library in _SEEDS if library not in sys.modules]
        self._go(1)
        try:
            found = self.plain(*given)
            _seed(self.seed, absent)
            return found
        finally:
            self._go(-1)

    def _go(self, step: int) -> None:
        with self.lock:
            self.depth = max(self.depth + step, 0)
            if self.is_calling and self.depth == max(step, 0):  # the outermost
                self.send({"imports": step > 0})


def _parent_decides(ours: int) -> Callable[[int, Any], None]:
    """A signal handler for preemptions, which reach all processes: the parent ends this one, so it
    ignores the signal. A process that a reward forks ends as usual.
    """

    def handle(number: int, frame: Any) -> None:
        if os.getpid() != ours:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    return handle


class _Server:
    """The loaded reward functions and the operations on them."""

    def __init__(self, speech: _Speech) -> None:
        self.speech = speech
        self.functions: list[RewardFunction] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        operations: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "load": self._load,
            "check": self._check,
            "grade": self._grade,
        }
        try:
            return operations[request["operation"]](request)
        except UserError as error:
            return {"user_error": str(error)}

    def _load(self, request: dict[str, Any]) -> dict[str, Any]:
        sys.path.extend(folder for folder in request["path"] if folder not in sys.path)
        with importing():
            self.functions = [load_reward(spec) for spec in request["specs"]]
        facts = ("rows_are_independent", "timeout_seconds")
        return {"facts": [{name: getattr(f, name) for name in facts} for f in self.functions]}

    def _check(self, request: dict[str, Any]) -> dict[str, Any]:
        for function in self.functions:
            function.check(request["columns"])
        return {}

    def _grade(self, request: dict[str, Any]) -> dict[str, Any]:
        rollouts: Rollouts = request["rollouts"]
        self.speech.seed = f"{rollouts.step}/{request['function']}/{rollouts.rows[0]}"
        random.seed(self.speech.seed)
        _seed(self.speech.seed)
        function = self.functions[request["function"]]
        try:
            scored = self.speech.call(lambda: function(rollouts))
        except UserError:
            raise
        except BaseException as error:  # SystemExit too costs its rows only
            return {"exception": f"{in_words(error)} ({where_raised(error)})"}
        return vars(scored)


def _read(channel: socket.socket, requests: "queue.SimpleQueue[dict[str, Any]]") -> None:
    """Queue arriving requests; end when the parent is gone, even in the middle of a call."""
    try:
        while True:
            requests.put(pickle.loads(guarded_process.receive(channel)))
    except EOFError:
        os.kill(os.getpid(), signal.SIGKILL)


_SEEDS: dict[str, Callable[[Any, int], Any]] = {
    "numpy": lambda numpy, seed: numpy.random.seed(seed),
    "torch": lambda torch, seed: torch.manual_seed(seed),
}


def _seed(text: str, libraries: Iterable[str] = _SEEDS) -> None:
    """Seed the loaded ones of these libraries for a call, whose random numbers depend on step,
    function and rows, not on the worker. A library that a call is the first to import is seeded
    after its import, so that later calls do not differ from that one.
    """
    for name in libraries:
        if (module := sys.modules.get(name)) is not None:
            _SEEDS[name](module, zlib.crc32(text.encode()))


def _plain(value: Any) -> Any:
    """The JSON form of a logged value: arrays as lists, everything else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
