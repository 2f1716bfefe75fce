"""Data between a test and the code under test: it arrives unchanged, and only data passes."""

import array
import datetime
import json
import random
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from strop.sandbox.judge import _MALFORMED
from strop.sandbox.wire import TYPES, decode, encode

UTC = datetime.UTC
VALUES: list[Any] = [
    None, True, 3, -(10**4000), 2.5, float("inf"), "\ud800 é", [1, [2.0, "x"]], (1, (2,)), {1, 2},
    frozenset({3, 4}), {"a": [1], (1, 2): None}, 1 - 2j, b"\x00\xff", bytearray(b"ab"),
    range(1, 9, 3), slice(None, 3), ..., Counter("aab"), OrderedDict(b=1, a=2),
    defaultdict(None, {1: [2]}),
    deque([1, 2], maxlen=2), Decimal("1.50"), Fraction(1, 3), datetime.date(2020, 1, 2),
    datetime.time(3, 4, 5, 6), datetime.datetime(2020, 1, 2, tzinfo=UTC),
    datetime.timedelta(days=-1, microseconds=3), UTC, array.array("d", [1.5]),
    np.float32(0.1), np.array([[1, 2], [3, 4]], dtype=np.int8), np.zeros((0, 3)), np.array(["ab"]),
]  # fmt: skip


def nothing(value: Any) -> Any:
    raise ValueError(f"not data: {value!r}")


def sent(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value, nothing))), nothing)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_data_arrives_as_it_was_sent(value):
    got = sent(value)
    assert type(got) is type(value)
    if isinstance(value, (np.ndarray, np.generic)):
        assert got.dtype == value.dtype
        assert got.shape == value.shape
        assert got.tolist() == value.tolist()
    else:
        assert got == value
        assert repr(got) == repr(value)


def test_only_integers_too_long_to_read_go_as_hexadecimal_text():
    least = -(1 << 10_000)
    assert encode(-3, nothing) == -3
    assert encode(3, nothing) == 3
    assert encode([-3, least, 3], nothing) == ["list", -3, ["int", hex(least)], 3]
    assert encode(-least, nothing) == ["int", hex(-least)]


def test_views_of_dictionaries_arrive_as_views():
    held = {"a": 1, "b": 2}
    for view in (held.keys(), held.items()):
        got = sent(view)
        assert type(got) is type(view)
        assert got == view
    assert list(sent(held.values())) == [1, 2]


def test_objects_and_derived_types_are_no_data():
    class Int(int):
        pass

    class List(list):
        pass

    for value in (object(), Int(3), List(), len, int, [Int(3)], {"a": List()}):
        with pytest.raises(ValueError, match="not data"):
            encode(value, nothing)


def made_up(rng: random.Random, depth: int) -> Any:
    """A message as a hostile process might send it."""
    plain = [None, True, -1, 10**30, 1.5, "a", "0x1F", "ff", "|O", "<f8", "[" * 9, {"a": 1}, []]
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(plain)
    tags = [*TYPES, "int", "numpy", "object", "argument", "builtin", 3, None]
    return [rng.choice(tags), *(made_up(rng, depth - 1) for _ in range(rng.randrange(5)))]


def test_whatever_is_sent_becomes_data_or_is_refused():
    rng = random.Random(5)
    known = {type(value) for value in VALUES} | {
        type({}.keys()),
        type({}.values()),
        type({}.items()),
    }
    num_made = 0
    for _ in range(20_000):
        try:
            value = decode(made_up(rng, 3), nothing)
        except _MALFORMED:
            continue
        num_made += 1
        assert type(value) in known or type(value).__module__ == "numpy"
        # Nothing that arrives equals two things. (An empty array does, to numpy's all.)
        equal = [bool(np.all(value == other)) for other in ("secret", 4, [4], {"a": 4})]
        assert sum(equal) <= 1 or getattr(value, "size", 1) == 0
    assert num_made > 2000
