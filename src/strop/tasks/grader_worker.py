"""The process that runs reward functions: it answers one request after the other over a socket.

Whatever a reward prints goes to the error stream; the socket is the only channel of results. The
process ends, with every process that a reward started, as soon as its parent does.
"""

import faulthandler
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
from collections.abc import Callable
from typing import Any

from strop._output import Lasting
from strop.errors import UserError
from strop.tasks import wire
from strop.tasks.reward_function import RewardFunction, load_reward
from strop.tasks.reward_source import where_raised
from strop.tasks.scored import Rollouts

ORPHAN_GRACE_SECONDS = 5.0  # after a call's limit, when the parent has not ended it
_POLL_SECONDS = 1.0


def main(fileno: int) -> None:
    """Serve the requests that arrive on a socket until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to decide
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _parent_decides(os.getpid()))
    sys.stdout, sys.stderr = Lasting(sys.stdout), Lasting(sys.stderr)
    faulthandler.enable(all_threads=False)
    os.set_inheritable(fileno, False)
    channel = socket.socket(fileno=fileno)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(channel, requests), daemon=True).start()
    server = _Server()
    while True:
        request = requests.get()
        reply = server.answer(request)
        wire.send(channel, json.dumps(reply, default=_plain).encode())


def _parent_decides(ours: int) -> Callable[[int, Any], None]:
    """A preemption that reaches all processes: the parent ends this one. A reward's own process,
    forked from it, ends as any other.
    """

    def handle(number: int, frame: Any) -> None:
        if os.getpid() != ours:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    return handle


class _Server:
    """The loaded reward functions and the operations on them."""

    def __init__(self) -> None:
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
        self.functions = [load_reward(spec) for spec in request["specs"]]
        facts = ("rows_are_independent", "timeout_seconds")
        return {"facts": [{name: getattr(f, name) for name in facts} for f in self.functions]}

    def _check(self, request: dict[str, Any]) -> dict[str, Any]:
        for function in self.functions:
            function.check(request["columns"])
        return {}

    def _grade(self, request: dict[str, Any]) -> dict[str, Any]:
        rollouts: Rollouts = request["rollouts"]
        _seed(f"{rollouts.step}/{request['function']}/{rollouts.rows[0]}")
        # A backup that needs no interpreter lock: the parent normally ends a late call.
        faulthandler.dump_traceback_later(request["limit"] + ORPHAN_GRACE_SECONDS, exit=True)
        try:
            scored = self.functions[request["function"]](rollouts)
        except UserError:
            raise
        except BaseException as error:  # SystemExit too costs its rows only
            kind = type(error).__name__
            return {"exception": f"{kind}: {error} ({where_raised(error)})"}
        finally:
            faulthandler.cancel_dump_traceback_later()
        return vars(scored)


def _read(channel: socket.socket, requests: "queue.SimpleQueue[dict[str, Any]]") -> None:
    """Queue what arrives; end everything when the parent is gone, even in the middle of a call."""
    parent = os.getppid()
    probe = threading.Thread(target=_end_with, args=(parent,), daemon=True)
    probe.start()
    try:
        while True:
            requests.put(pickle.loads(wire.receive(channel)))
    except EOFError:
        _end_group()


def _end_with(parent: int) -> None:
    """A forked relative of the parent may hold its end of the socket open after its death."""
    while os.getppid() == parent:
        threading.Event().wait(_POLL_SECONDS)
    _end_group()


def _end_group() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _seed(text: str) -> None:
    """A call's random numbers depend on step, function and rows, not on which worker runs it."""
    random.seed(text)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(zlib.crc32(text.encode()))


def _plain(value: Any) -> Any:
    """JSON form of what a function logged: arrays as lists, everything else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
