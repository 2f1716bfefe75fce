"""Proxies that a test holds in place of objects of the code under test, which stay in its process.

The object's class may claim anything, so its operators are not used in a comparison with data:
`answer == 4` compares the data that the object holds (where its class derives from a type of data,
such as a named tuple), and is False where there is none. The object's own operators are used
between two such objects, and for objects that the test made of a class of the answer (`Stack()`, a
name with a capital letter): there the test is about the class. The result of a call or an attribute
is treated like others, also where it is such an object or class again (`Solution().f(2)` may not be
the solution itself): it has a proxy of its own.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Generator

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing it costs a tenth of a sandbox's start
    from typing import Any, Protocol

    class Link(Protocol):
        """Sends requests to the process of the code under test."""

        @property
        def num_asked(self) -> int:
            """The number of requests so far."""
            ...

        def ask(self, what: str, *operands: Any) -> Any:
            """Run an operation in that process and return its result."""
            ...


class Far:
    """The location of a proxy's object, and what is known of it."""

    def __init__(self, link: Link, number: int, *, makes: bool = False, made: bool = False) -> None:
        self.link, self.number = link, number
        self.makes = makes  # a class, as the test writes it
        self.made = made  # made of such a class, where the test made it
        self._data: tuple[int, list[Any]] = (-1, [])

    def data(self, proxy: Any) -> list[Any]:
        """The data that the object holds, in a list; empty where it is no data.

        It is requested once between two actions of the test: an object may not give different
        data for each of the values that it is compared with.
        """
        if self._data[0] != self.link.num_asked:
            found = self.link.ask("data", proxy)
            self._data = self.link.num_asked, found if type(found) is list else []
        return self._data[1]


class Proxy:
    """Stands for an object of the code under test; `far` has its location."""

    __slots__ = ("__weakref__", "_far")

    def __init__(self, far: Far) -> None:
        object.__setattr__(self, "_far", far)

    def __getattribute__(self, name: str) -> Any:
        # isinstance asks for the class of data and of objects alike, and wants a real one.
        if name == "__class__":
            return Proxy
        if name.startswith("__array"):  # numpy would take an address in this process's memory
            raise AttributeError(name)
        if name == "__deepcopy__":  # the module copy asks the object for it, not the class
            return object.__getattribute__(self, name)
        return _ask("getattr", self, name)

    def __call__(self, *args: Any, **named: Any) -> Any:
        value = _ask("call", self, args, named)
        far = far_of(self)
        if far.makes and type(value) is Proxy:
            return Proxy(Far(far.link, far_of(value).number, made=True))
        return value

    def __enter__(self) -> Any:
        value = _ask("enter", self)
        return self if same(value, self) else value

    def __contains__(self, value: Any) -> bool:
        if far_of(self).made:
            return bool(_ask("contains", self, value))
        data = far_of(self).data(self)
        if data:
            return value in data[0]
        return any(part is value or part == value for part in _ask("iter", self))

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> bool:
        if kind is not None and issubclass(kind, AssertionError):
            return False  # the answer must not suppress a failed comparison
        known = kind if kind is None or kind.__module__ == "builtins" else RuntimeError
        return bool(_ask("leave", self, known, str(error)))

    def __instancecheck__(self, value: Any) -> bool:
        return bool(_ask("isinstance", value, self))

    def __subclasscheck__(self, value: Any) -> bool:
        return bool(_ask("issubclass", value, self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _ask("deepcopy", self)

    def __await__(self) -> Generator[Any, Any, Any]:
        yield from ()
        return _ask("wait_for", self)


Proxy.__name__ = "object of the answer"  # in messages of the interpreter
far_of: Callable[[Proxy], Far] = vars(Proxy)["_far"].__get__


def _ask(what: str, proxy: Any, *args: Any) -> Any:
    link = far_of(proxy if type(proxy) is Proxy else args[0]).link
    return link.ask(what, proxy, *args)


def same(one: Any, other: Any) -> bool:
    """`is` as a test means it."""
    if type(one) is Proxy and type(other) is Proxy:
        return far_of(one).number == far_of(other).number
    return one is other


def class_of(*args: Any) -> Any:
    """`type(...)` as a test means it."""
    if len(args) == 1 and type(args[0]) is Proxy:
        return _ask("type", args[0])
    return type(*args)


def _forwarded(what: str) -> Callable[..., Any]:
    return lambda self, *args: _ask(what, self, *args)


def _binary(name: str, reflected: bool) -> Callable[[Any, Any], Any]:
    compute = getattr(operator, name, None) or getattr(builtins, name)

    def method(self: Any, other: Any) -> Any:
        if type(other) is Proxy or far_of(self).made:
            return _ask(name, other, self) if reflected else _ask(name, self, other)
        data = far_of(self).data(self)
        if not data:
            return NotImplemented
        return compute(other, data[0]) if reflected else compute(data[0], other)

    return method


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if type(other) is not Proxy and not far_of(self).made:
            return NotImplemented  # so that its data are taken, as without an assignment
        value = _ask(name, self, other)
        return self if same(value, self) else value

    return method


_ASKED = {
    "setattr": "setattr", "delattr": "delattr", "getitem": "getitem", "setitem": "setitem",
    "delitem": "delitem", "iter": "iter", "next": "next", "reversed": "reversed", "len": "len",
    "bool": "truth", "hash": "hash", "str": "str", "repr": "repr", "format": "format",
    "int": "int", "float": "float", "complex": "complex", "index": "index", "round": "round",
    "abs": "abs", "neg": "neg", "pos": "pos", "invert": "invert", "dir": "dir",
    "copy": "copy",
}  # fmt: skip
_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul",
               "and_", "or_", "xor", "lshift", "rshift", "divmod")  # fmt: skip

for _method, _what in _ASKED.items():
    setattr(Proxy, f"__{_method}__", _forwarded(_what))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Proxy, f"__{_name}__", _binary(_name, reflected=False))
for _name in _ARITHMETIC:
    _bare = _name.strip("_")
    setattr(Proxy, f"__{_bare}__", _binary(_name, reflected=False))
    setattr(Proxy, f"__r{_bare}__", _binary(_name, reflected=True))
    if hasattr(operator, f"i{_bare}"):
        setattr(Proxy, f"__i{_bare}__", _in_place(f"i{_bare}"))
