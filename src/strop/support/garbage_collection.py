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

RARELY = 1_000_000  # new objects between two looks; otherwise 700
# While a command begins: the usual thresholds, and whether nothing was passed over before it.
_usual: list[tuple[tuple[int, int, int], bool]] = []


@contextmanager
def beginning() -> Iterator[None]:
    """Inside, until `loaded`, garbage is looked for rarely; when the process ends, not at all."""
    usual, alone = gc.get_threshold(), gc.get_freeze_count() == 0
    _usual.append((usual, alone))
    gc.set_threshold(RARELY, *usual[1:])
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        loaded()
        if alone:
            gc.unfreeze()


def loaded() -> None:
    """What a command needs is loaded: garbage is looked for as usual, but not among all that."""
    if _usual:
        usual, alone = _usual.pop()
        gc.set_threshold(*usual)
        if alone:  # else a longer-lived process has chosen what it passes over
            gc.freeze()


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
    """Import modules over which this process, and those that are copied from it, then pass."""
    for name in names:
        imported(name)
    gc.freeze()
    atexit.register(gc.freeze)
