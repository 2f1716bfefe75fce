"""When Python looks for garbage: rarely while a command begins, and not while its process ends.

Libraries are a million objects that stay. To pass over them again and again is a quarter of the
time of importing them, and as much once more at the end, when the system takes all of it back.
"""

import atexit
import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

RARELY = 100_000  # new objects between two looks; otherwise 700
_usual: list[tuple[int, int, int]] = []  # thresholds while a command begins


@contextmanager
def beginning() -> Iterator[None]:
    """Inside, until `begun`, garbage is looked for rarely; at the end of the process not at all."""
    _usual.append(gc.get_threshold())
    gc.set_threshold(RARELY, *_usual[0][1:])
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        begun()


def begun() -> None:
    """What a command needs is loaded: garbage is looked for as usual."""
    if _usual:
        gc.set_threshold(*_usual.pop())


@contextmanager
def importing() -> Iterator[None]:
    """Inside, garbage is not looked for."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def imported(name: str) -> Any:
    """A module; garbage is not looked for while it and what it needs are imported."""
    with importing():
        return import_module(name)


def preload(names: Iterable[str]) -> None:
    """Import modules for processes that are copied from this one, which then pass over them."""
    for name in names:
        imported(name)
    gc.freeze()
    atexit.register(gc.freeze)
