"""What a fuzz test of an entry point needs: wrong values, and the one outcome that they may have.

The suite tries some of each. A long campaign tries a multiple of them, with another seed:

    STROP_FUZZ_TIMES=20 STROP_FUZZ_SEED=1 pytest -n 0 tests/fuzz
"""

import copy
import os
import random
import signal
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from strop.support.errors import RunStopped, UserError

TIMES = int(os.environ.get("STROP_FUZZ_TIMES", "1"))
SEED = int(os.environ.get("STROP_FUZZ_SEED", "0"))
LONGEST = 3000  # characters of a message
SECONDS = 20  # limit of one call; an entry point that takes longer hangs

# Numbers and texts that no option expects, or at an option's limits.
NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 0.0, -0.0, 0.5, -0.5, 1e-300, 1e300, -1e300, 2**31, 2**63, -(2**63) - 1, 2**64,
    10**400, float("nan"), float("inf"), -float("inf"), True, False,
)  # fmt: skip
TEXTS: tuple[str, ...] = (
    "", " ", "x", "none", "nan", "inf", "-inf", "1e999", "0x10", "1_0", "9" * 5000, "\0", "\ud800",
    "é", "\U0001f600", "\u2028", "[", "[[red]]", "(" * 300, "a.b.c", "a:b", "os:system", "../x",
    "x.py:f", "=", "a=b", "'", '"', "\\", "%s", "{}", "-", "--", "|", "@", "a" * 5000,
)  # fmt: skip
OBJECTS: tuple[Any, ...] = (
    None, {}, {"a": 1}, {1: 2}, [], [[]], [1, "x"], [None], (), (1,), (1, 2, 3), [[1], [1, 2]],
    b"x", set(), object(), len, int, 1j, range(3),
)  # fmt: skip


def seeded(number: int) -> random.Random:
    """Random numbers of a test, and of a campaign."""
    return random.Random(number + 1000 * SEED)


def tries(number: int) -> range:
    """So many inputs in the suite, and more in a campaign."""
    return range(number * TIMES)


def wrong(rng: random.Random) -> Any:
    """A value of any kind that some door may not expect."""
    value = rng.choice(rng.choice((NUMBERS, TEXTS, OBJECTS)))
    return copy.deepcopy(value) if isinstance(value, dict | list) else value


class Slow(Exception):
    """A call took longer than a door may."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Inside, Slow is raised after so many seconds."""

    def stop(*_: Any) -> None:
        raise Slow

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Outcomes:
    """Counts what calls came to; everything but success and one line for the user is a fault."""

    def __init__(self) -> None:
        self.fine, self.refused = Counter[str](), Counter[str]()
        self.faults: dict[str, list[str]] = defaultdict(list)

    def of(self, call: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
        """Call it with these arguments; its result, None where it has none."""
        try:
            with within(SECONDS):
                result = call(*given, **named)
            self.fine[call.__name__] += 1
            return result
        except (UserError, RunStopped) as error:
            self.refused[call.__name__] += 1
            text = str(error)
            if not text.strip() or len(text) > LONGEST:
                self._fault(f"a message of {len(text)} letters", text, call, given, named)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            last = [frame for frame in frames if "/strop/" in frame.filename][-1:]
            places = [f"{f.filename.rpartition('/strop/')[2]}:{f.lineno}" for f in last]
            self._fault(f"{type(error).__name__} in {places}", error, call, given, named)

    def _fault(self, kind: str, error: Any, call: Any, given: Any, named: Any) -> None:
        what = f"{call.__name__}, {str(given)[:400]} {str(named)[:400]}: {error}"
        self.faults[kind].append(what[:1000])

    def check(self) -> None:
        """Raise AssertionError with every kind of fault and how often it came, and for a call
        that never came to anything.
        """
        lines = [f"{len(found)} x {kind}, as {found[0]}" for kind, found in self.faults.items()]
        assert not lines, "\n" + "\n".join(lines)
        assert not self.refused.keys() - self.fine.keys(), (self.refused, self.fine)


BYTES = (b"", b"\xff", b"\0", b"[", b'"', b"=", b"\n", b"{", b"9" * 5000, b"[" * 5000, b"\x7f" * 30)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The bytes with some of them left out or replaced, or cut off."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(found) + 1)
        found[at : at + rng.choice((0, 1, 20))] = rng.choice(BYTES)
    return bytes(found[: rng.randrange(len(found) + 1)] if rng.random() < 0.1 else found)
