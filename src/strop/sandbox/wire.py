"""The messages between a test and the code under test: plain data and numbers of objects.

The two run in separate processes (`judge.py`, `answer.py`) and exchange lines of JSON. A value is
itself (None, bool, float, str, small int) or a list that begins with a tag. Tags of `TYPES` are
always rebuilt as exactly that type; no code and no class of the sender is ever received, so no
received value has operators of its own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing it costs a tenth of a sandbox's start
    from typing import Any

MESSAGE_BYTES = 1 << 26
_SMALL = 1 << 10_000  # longer ints go as hexadecimal text, which takes no time to read
_DTYPE = re.compile(r"[<>|=][biufc]\d+|[<>|=]U\d+")


class Channel:
    """Lines of JSON, one way each."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._reader, self._writer = os.fdopen(read_fd, "rb"), os.fdopen(write_fd, "wb")

    def send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode("ascii") + b"\n")
        self._writer.flush()

    def receive(self) -> dict[str, Any]:
        """The next message. Raises EOFError at the end, ValueError for a malformed one."""
        line = self._reader.readline(MESSAGE_BYTES)
        if not line:
            raise EOFError("the other process has ended")
        message = json.loads(line) if line.endswith(b"\n") else None
        if type(message) is not dict:
            raise ValueError("what came is no message, or too long")
        return message


class Form:
    """How a type is split into parts, and rebuilt from them."""

    def __init__(self, parts: Callable[[Any], list[Any]], make: Callable[[list[Any]], Any]) -> None:
        self.parts, self.make = parts, make


def _fields(*names: str) -> Callable[[Any], list[Any]]:
    return lambda value: [getattr(value, name) for name in names]


def _pairs(value: Any) -> list[Any]:
    return [part for pair in value.items() for part in pair]


def _dict(parts: list[Any]) -> dict[Any, Any]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _stdlib(module: str, name: str) -> Any:
    return getattr(__import__(module), name)


def _made(module: str, name: str) -> Callable[[list[Any]], Any]:
    """Makes an object of a class of the standard library from the arguments of its constructor."""
    return lambda parts: _stdlib(module, name)(*parts)


def _factory(given: Any) -> Any:
    known = (int, float, str, list, dict, set, tuple, bool)
    return given if any(given is kind for kind in known) else None


_DATE, _TIME = ("year", "month", "day"), ("hour", "minute", "second", "microsecond", "tzinfo")

TYPES: dict[str, Form] = {
    "list": Form(list, list),
    "tuple": Form(list, tuple),
    "set": Form(list, set),
    "frozenset": Form(list, frozenset),
    "dict": Form(_pairs, _dict),
    "complex": Form(_fields("real", "imag"), lambda p: complex(*map(float, p))),
    "bytes": Form(lambda v: [v.hex()], lambda p: bytes.fromhex(*p)),
    "bytearray": Form(lambda v: [v.hex()], lambda p: bytearray.fromhex(*p)),
    "dict_keys": Form(list, lambda p: dict.fromkeys(p).keys()),
    "dict_values": Form(list, lambda p: dict(enumerate(p)).values()),
    "dict_items": Form(list, lambda p: dict(p).items()),
    "array.array": Form(
        lambda v: [v.typecode, *v], lambda p: _stdlib("array", "array")(p[0], p[1:])
    ),
    "range": Form(_fields("start", "stop", "step"), lambda p: range(*p)),
    "slice": Form(_fields("start", "stop", "step"), lambda p: slice(*p)),
    "ellipsis": Form(lambda v: [], lambda p: ...),
    "collections.Counter": Form(_pairs, lambda p: _stdlib("collections", "Counter")(_dict(p))),
    "collections.OrderedDict": Form(
        _pairs, lambda p: _stdlib("collections", "OrderedDict")(_dict(p))
    ),
    "collections.defaultdict": Form(
        lambda v: [v.default_factory, *_pairs(v)],
        lambda p: _stdlib("collections", "defaultdict")(_factory(p[0]), _dict(p[1:])),
    ),
    "collections.deque": Form(
        lambda v: [v.maxlen, *v], lambda p: _stdlib("collections", "deque")(p[1:], p[0])
    ),
    "decimal.Decimal": Form(lambda v: [str(v)], _made("decimal", "Decimal")),
    "fractions.Fraction": Form(_fields("numerator", "denominator"), _made("fractions", "Fraction")),
    "datetime.date": Form(_fields(*_DATE), _made("datetime", "date")),
    "datetime.time": Form(_fields(*_TIME), _made("datetime", "time")),
    "datetime.datetime": Form(_fields(*_DATE, *_TIME), _made("datetime", "datetime")),
    "datetime.timezone": Form(lambda v: [v.utcoffset(None)], _made("datetime", "timezone")),
    "datetime.timedelta": Form(
        _fields("days", "seconds", "microseconds"), _made("datetime", "timedelta")
    ),
}


def encode(value: Any, refer: Callable[[Any], list[Any]]) -> Any:
    """Encode a value for JSON; `refer` gives the tagged list of an object that is no plain data."""
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if kind is int:
        return value if -_SMALL < value < _SMALL else ["int", hex(value)]
    module = kind.__module__
    name = kind.__name__ if module == "builtins" else f"{module}.{kind.__name__}"
    if name in TYPES:
        parts = TYPES[name].parts(value)
        return [name, *(parts if _is_flat(parts) else (encode(part, refer) for part in parts))]
    if module == "numpy" and getattr(value, "dtype", None) and value.dtype.kind in "biufcU":
        kept = [value.dtype.str, list(value.shape), value.tolist()]
        return ["numpy", *(encode(part, refer) for part in kept)]
    return refer(value)


def decode(value: Any, resolve: Callable[[list[Any]], Any]) -> Any:
    """Decode a value; `resolve` takes the tagged lists that `refer` gave."""
    if type(value) is dict:
        raise ValueError("a value cannot be a JSON object")
    if type(value) is not list:
        return value
    tag, *parts = value
    if tag == "int":
        return int(parts[0], 16)
    if tag in TYPES:
        kinds = set(map(type, parts))
        flat = list not in kinds and dict not in kinds
        return TYPES[tag].make(parts if flat else [decode(part, resolve) for part in parts])
    if tag == "numpy":
        return _array(*(decode(part, resolve) for part in parts))
    return resolve(value)


def _is_flat(parts: list[Any]) -> bool:
    """Whether JSON can hold the parts unchanged; lists of a million numbers are common."""
    kinds = set(map(type, parts))
    if kinds <= {int, bool}:
        return not parts or -_SMALL < min(parts) <= max(parts) < _SMALL
    return kinds <= {float, str, bool, type(None)}


def _array(dtype: Any, shape: Any, values: Any) -> Any:
    """A numpy array, or a scalar for an empty shape. Numpy is available only with `packages`."""
    if not _DTYPE.fullmatch(dtype):
        raise ValueError(f"no plain numpy type: {dtype!r}")
    array = __import__("numpy").array(values, dtype=dtype).reshape(shape)
    return array if shape else array[()]
