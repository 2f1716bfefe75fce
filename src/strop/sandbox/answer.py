"""The process of the code under test: runs it, then serves the test's requests, one at a time.

Nothing here is trusted: the code that it runs may replace all of it. It can only send back data
(`wire.py`), and receives the arguments of calls, never what their results are compared with.
"""

from __future__ import annotations

import builtins
import io
import marshal
import operator
import os
import sys
import types
from collections.abc import Callable

from strop.sandbox.wire import Channel, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing it costs a tenth of a sandbox's start
    from typing import Any

_BASES: tuple[Any, ...] = (int, float, str, bytes, tuple, list, dict, set, frozenset)


class Served:
    """The module of the code, and its objects that the test knows by number."""

    def __init__(self, code: str, module: types.ModuleType, channel: Channel) -> None:
        self.code, self.module, self.channel = code, module, channel
        self.objects: list[Any] = []  # keeps them alive, so that ids stay unique
        self.numbers: dict[int, int] = {}
        self.callbacks: dict[int, Any] = {}

    def run(self) -> None:
        """Serve the test's requests until it ends."""
        while True:
            self.reply(self._next())

    def _next(self) -> dict[str, Any]:
        try:
            return self.channel.receive()
        except EOFError:
            os._exit(0)

    def reply(self, message: dict[str, Any]) -> None:
        """Serve one request: send its result, its output and the changed arguments."""
        reply: dict[str, Any] = {"tell": message["ask"]}
        printed = io.BytesIO()
        wrapped = io.TextIOWrapper(printed, "utf-8", errors="replace", write_through=True)
        kept, sys.stdout = sys.stdout, wrapped
        args: list[Any] = []
        try:
            args = [decode(part, self.resolve) for part in message["with"]]
            value = self.do(message["do"], args)
            reply["value"] = self.encoded(value, args)
        except BaseException as error:
            reply["raised"] = self.raised(error)
        finally:
            sys.stdout = kept
        reply["out"] = printed.getvalue().decode("utf-8", "replace")
        if message["do"] == "call" and args:
            after = [encode(part, self.refer) for part in args[1:]]
            if after != message["with"][1:]:
                reply["after"] = after
        self.channel.send(reply)

    def do(self, what: str, args: list[Any]) -> Any:
        if what in _OWN:
            return _OWN[what](self, *args)
        found: Callable[..., Any] | None = getattr(operator, what, None)
        found = found or getattr(builtins, what, None) or getattr(__import__("copy"), what)
        return found(*args)

    def load(self) -> None:
        compiled = compile(self.code, "answer.py", "exec", dont_inherit=True)
        exec(compiled, vars(self.module))

    def name(self, name: str) -> Any:
        return vars(self.module)[name]

    def run_here(self, code: bytes, names: dict[str, Any]) -> None:
        """Run a piece of the test in the module of the code."""
        vars(self.module).update(names)
        exec(marshal.loads(code), vars(self.module))

    def encoded(self, value: Any, args: list[Any]) -> Any:
        """Encode a result; one that is an argument of the call is encoded as that argument."""
        if isinstance(value, (list, dict, set)) and len(args) == 3 and type(args[1]) is tuple:
            for place, given in enumerate(args[1]):
                if value is given:
                    return ["argument", place]
        return encode(value, self.refer)

    def refer(self, value: Any) -> list[Any]:
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        number = self.numbers[id(value)]
        if isinstance(value, type):
            name = value.__name__
            if value.__module__ == "builtins" and getattr(builtins, name, None) is value:
                return ["builtin", name]
            if issubclass(value, BaseException):
                bases = [base for base in value.__bases__ if issubclass(base, BaseException)]
                known = [encode(base, self.refer) for base in bases]
                return ["exception", number, value.__module__, name, *known]
        return ["coroutine" if isinstance(value, types.CoroutineType) else "object", number]

    def resolve(self, value: list[Any]) -> Any:
        tag, what = value[:2]
        if tag == "object":
            return self.objects[what]
        if tag == "builtin":
            return getattr(builtins, what)
        if tag == "iterator":
            return iter([decode(part, self.resolve) for part in value[1:]])
        if what not in self.callbacks:

            def callback(*args: Any, **named: Any) -> Any:
                return self.ask(what, args, named)

            self.callbacks[what] = callback
        return self.callbacks[what]

    def ask(self, function: int, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Let the test call one of its own functions."""
        given = [encode(part, self.refer) for part in (args, named)]
        self.channel.send({"ask": function, "with": given})
        while True:
            message = self._next()
            if "ask" in message:
                self.reply(message)
                continue
            if "raised" in message:
                name, *details = message["raised"]
                raise getattr(builtins, name)(*details)
            return decode(message["value"], self.resolve)

    def raised(self, error: BaseException) -> list[Any]:
        args = [encode(part, self.refer) for part in error.args]
        return [self.refer(type(error)), self.refer(error), *args]


def _wait_for(coroutine: Any) -> Any:
    import asyncio  # slow to import, and rarely needed

    return asyncio.run(coroutine)


def _leave(manager: Any, kind: type[BaseException] | None, text: str) -> Any:
    return type(manager).__exit__(manager, kind, kind and kind(text), None)


def plain(value: Any) -> list[Any]:
    """The data of an object whose class derives from a type of data, as that type; else empty."""
    for base in _BASES:
        if isinstance(value, base):
            # str() of a str that is an enumeration's member is the member's name.
            return [str.__str__(value) if base is str else base(value)]
    return []


# Operations of a test's requests, besides the functions of `operator`, builtins and `copy`.
_OWN: dict[str, Callable[..., Any]] = {
    "load": Served.load,
    "name": Served.name,
    "run_here": Served.run_here,
    "call": lambda served, function, args, named: function(*args, **named),
    "data": lambda served, value: plain(value),
    "wait_for": lambda served, coroutine: _wait_for(coroutine),
    "enter": lambda served, manager: type(manager).__enter__(manager),
    "leave": lambda served, *args: _leave(*args),
}
