"""The process of a test: runs it against the code under test, which runs in another process.

The names that the test does not define itself are objects of that process (`proxy.py`); their
calls take and return data. So a comparison with data happens here, where no code of the answer ever
runs, and the answer sees neither the test nor the expected values. A test that cannot be run from
outside (`plan.py`) runs in the answer's process, and its assertions are judged here.
"""

from __future__ import annotations

import builtins
import marshal
import os
import sys
import types
from collections.abc import Callable, Sequence

from strop.sandbox.proxy import Far, Proxy, class_of, far_of, same
from strop.sandbox.wire import Channel, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing it costs a tenth of a sandbox's start
    from typing import Any, NoReturn

# Modules whose exceptions a test may name, if it imports them.
_RAISING = ("binascii", "csv", "decimal", "json.decoder", "queue", "re", "statistics", "struct")
# Exceptions that reading a malformed or foreign message can raise.
_MALFORMED = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
_FORGIVING = (AssertionError, Exception, BaseException)  # these would catch a failed comparison
_TURNED = (StopIteration, StopAsyncIteration)  # raised by a call, these would end a loop silently


def judge(plan: dict[str, Any], link: Link) -> bool:
    """Run the test; True when it ran to its end."""
    answer: Any = types.ModuleType("answer")
    answer.__getattr__ = link.attribute
    answer.__all__ = []
    sys.modules["answer"] = answer
    try:
        if plan["define"]:
            link.run_there(plan["define"], {})
        names = Names(plan, link)
        if plan["inside"]:
            return Assertions(plan, names).judge(link)
        space = {"__name__": "__main__", "__builtins__": names}
        names["__run_cases__"] = lambda: run_cases(space)
        exec(plan["code"] or _compiled(plan["source"]), space)
    except BaseException:
        sys.__excepthook__(*sys.exc_info())
        return False
    return True


class Names(dict):
    """The builtins of a test; any other name is the answer's."""

    def __init__(self, plan: dict[str, Any], link: Link) -> None:
        super().__init__(vars(builtins))
        self.link = link
        self.update(__settle__=link.settle, __class_of__=class_of, __same__=same)
        for name in plan["shadowed"]:  # a function under test may have a builtin's name
            if link.has(name):
                del self[name]
        for name, (module, part) in plan["helpers"].items():
            found = __import__(module)
            self[name] = getattr(found, part) if part else found

    def __missing__(self, name: str) -> Any:
        return self.link.name(name)


class Link:
    """Sends requests to the answer's process, and reads its replies only as data or numbers."""

    def __init__(self, channel: Channel, end: Callable[[], None]) -> None:
        self.channel, self._end = channel, end
        self.num_asked = 0
        self.known: dict[int, Any] = {}  # by number of the object: its proxy or exception class
        self.callbacks: list[Any] = []
        self.owed: list[tuple[Any, Any]] = []  # arguments, and what the call made of them

    def ask(self, what: str, *args: Any) -> Any:
        """Return or raise the answer's result. Ends this process where there is no reply."""
        ticket = os.urandom(8).hex()
        self.num_asked += what not in ("data", "hash", "name")
        given = [encode(part, self.refer) for part in args]
        try:
            self.channel.send({"ask": ticket, "do": what, "with": given})
            reply = self._reply(ticket)
            sys.stdout.write(str(reply["out"]))
            after = [decode(part, self.resolve) for part in reply.get("after", ())]
            self.owed += zip(args[1:], after, strict=False)
            if "raised" not in reply:
                return self._value(reply["value"], after or args[1:])
            error = self._raised(what, *reply["raised"])
        except (EOFError, OSError):
            self.end("the answer ended its process")
        except _MALFORMED as bad:
            self.end(f"the answer broke the line to its test ({bad})")
        raise error

    def _reply(self, ticket: str) -> dict[str, Any]:
        while True:
            message = self.channel.receive()
            if message.get("tell") == ticket:
                return message
            self._call_back(message)

    def _value(self, value: Any, given: Sequence[Any]) -> Any:
        if type(value) is list and value[0] == "argument":
            return given[0][value[1]]
        return decode(value, self._result)

    def _result(self, value: list[Any]) -> Any:
        found = self.resolve(value)
        if any(found is kind for kind in _FORGIVING):
            raise ValueError(f"{found.__name__} as a value")  # `except MyError` would catch all
        return found

    def _call_back(self, message: dict[str, Any]) -> None:
        """Serve a call of a function of the test that the answer received as an argument."""
        function = self.callbacks[message["ask"]]
        args, named = (decode(part, self.resolve) for part in message["with"])
        try:
            reply: dict[str, Any] = {"value": encode(function(*args, **named), self.refer)}
        except AssertionError:
            self.end("AssertionError")  # otherwise the answer might suppress it
        except Exception as error:
            name = type(error).__name__
            reply = {"raised": [name if hasattr(builtins, name) else "RuntimeError", str(error)]}
        self.channel.send(reply)

    def refer(self, value: Any) -> list[Any]:
        """The tagged list for an object that is no data."""
        if type(value) is Proxy:
            return ["object", far_of(value).number]
        name = getattr(value, "__name__", None)
        if isinstance(name, str) and vars(builtins).get(name) is value:
            return ["builtin", name]
        number = getattr(value, "answers_number", None)
        if number is not None:
            return ["object", number]
        if callable(value):
            self.callbacks.append(value)
            return ["callback", len(self.callbacks) - 1]
        if hasattr(value, "__next__"):
            return ["iterator", *(encode(part, self.refer) for part in value)]
        raise TypeError(f"a test cannot give the answer a {type(value).__name__}")

    def resolve(self, value: list[Any]) -> Any:
        """The object that a tagged list of the answer stands for."""
        tag, what = value[:2]
        if tag == "builtin":
            found = getattr(builtins, what)
            if not isinstance(found, type):
                raise ValueError(f"{what!r} is no type")
            return found
        if type(what) is not int or tag not in ("object", "exception", "coroutine"):
            raise ValueError(f"no value: {tag!r}")
        if what not in self.known:
            if tag == "exception":
                self.known[what] = self._exception_class(*value[1:])
            else:
                self.known[what] = Proxy(Far(self, what))
        return _awaited(self.known[what]) if tag == "coroutine" else self.known[what]

    def _exception_class(self, number: int, module: str, name: str, *bases: Any) -> Any:
        """A class that stands for one of the answer's, with the same bases among the builtins."""
        if module in _RAISING and module in sys.modules:
            known = getattr(sys.modules[module], name, None)
            if isinstance(known, type) and issubclass(known, Exception):
                return known
        near = tuple(decode(base, self.resolve) for base in bases)
        if not all(issubclass(base, Exception) for base in near):
            near = (RuntimeError,)
        far = {
            "answers_number": number,
            "__module__": "builtins",
            "__str__": lambda error: str(error.far),
            "__getattr__": lambda error, name: getattr(error.__dict__["far"], name),
        }
        return type(name, near, far)

    def _raised(self, what: str, kind: Any, error: Any, *args: Any) -> BaseException:
        found = decode(kind, self.resolve)
        given = [decode(part, self.resolve) for part in args]
        if not issubclass(found, (Exception, SystemExit)):
            return RuntimeError(f"the answer raised {found.__name__}")
        if issubclass(found, _TURNED) and what != "next":
            return RuntimeError(f"the answer raised {found.__name__}")
        made: BaseException = found.__new__(found, *given)
        if hasattr(found, "answers_number"):
            made.__dict__["far"] = decode(error, self.resolve)
        elif found.__module__ == "builtins":
            made = found(*given)
        return made

    def settle(self) -> None:
        """Update the test's lists as calls changed them; called before each of its statements."""
        for given, after in self.owed:
            merge(given, after)
        self.owed.clear()

    def run_there(self, code: types.CodeType, names: dict[str, Any]) -> None:
        """Run a piece of the test in the module of the answer, with names of the sandbox."""
        self.ask("run_here", marshal.dumps(code), names)

    def name(self, name: str) -> Any:
        """The value of a global name of the answer. Raises KeyError where it has none."""
        value = self.ask("name", name)
        if type(value) is Proxy and name[:1].isupper():
            return Proxy(Far(self, far_of(value).number, makes=True))
        return value

    def has(self, name: str) -> bool:
        try:
            self.name(name)
        except KeyError:
            return False
        return True

    def attribute(self, name: str) -> Any:
        """The value of a name for `import answer`. Raises AttributeError where it has none."""
        try:
            return self.name(name)
        except KeyError:
            raise AttributeError(f"the answer has no {name!r}") from None

    def end(self, why: str) -> NoReturn:
        """Fail the test, even if it would catch an exception."""
        os.write(2, f"\n{why}\n".encode("utf-8", "replace"))
        self._end()
        os._exit(1)


class Assertions:
    """The comparisons of a test's assertions, where the test runs in the answer's process."""

    def __init__(self, plan: dict[str, Any], names: Names) -> None:
        self.code, self.needed = plan["code"], set(plan["needed"])
        space = {"__builtins__": names}
        self.checks = [eval(code, space) for code in plan["checks"]]
        self.held: set[int] = set()

    def judge(self, link: Link) -> bool:
        link.run_there(self.code, {"__check__": self.check})
        if self.needed <= self.held and (self.held or not self.checks):
            return True
        raise AssertionError("the test ended before its assertions")

    def check(self, number: int, *operands: Any) -> None:
        assert self.checks[number](*operands)
        self.held.add(number)


def run_cases(space: dict[str, Any]) -> None:
    """Run a test's own cases, as `unittest.main()` does; all of them must pass."""
    import unittest

    kinds = [kind for kind in space.values() if isinstance(kind, type)]
    cases = [kind for kind in kinds if issubclass(kind, unittest.TestCase)]
    suite = unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, cases))
    found = unittest.TextTestRunner().run(suite)
    assert found.testsRun
    assert found.wasSuccessful()


def _compiled(source: str) -> types.CodeType:
    return compile(source, "<test>", "exec", dont_inherit=True)


def _awaited(coroutine: Any) -> Any:
    async def awaited() -> Any:
        return await coroutine

    return awaited()


def merge(given: Any, after: Any) -> Any:
    """Change an argument to its value after the call, in place as far as possible."""
    if type(given) is not type(after):
        return after
    if type(given) is Proxy:
        return given if same(given, after) else after
    if isinstance(given, list):
        pairs = zip(given, after, strict=False)
        given[:] = [merge(*pair) for pair in pairs] + after[len(given) :]
    elif isinstance(given, dict):
        merged = {k: merge(given[k], v) if k in given else v for k, v in after.items()}
        given.clear()
        given.update(merged)
    elif isinstance(given, tuple) and len(given) == len(after):
        return tuple(merge(*pair) for pair in zip(given, after, strict=True))
    elif hasattr(given, "clear"):  # set, bytearray, deque
        given.clear()
        (given.extend if hasattr(given, "extend") else given.update)(after)
    else:
        return after
    return given
