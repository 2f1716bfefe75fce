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
# Of commands under way, the latter; and whether what is passed over was preloaded for commands.
_alone: list[bool] = []
_preloaded: list[bool] = []
# Whether somebody else passes over something, as a suite of tests does: once seen it is not looked
# for again, which takes a tenth of a second where there is much of it.
_others: list[bool] = []


@contextmanager
def beginning() -> Iterator[None]:
    """Inside, until `loaded`, garbage is looked for rarely; when the process ends, not at all."""
    usual, alone = gc.get_threshold(), may_choose()
    _usual.append((usual, alone))
    _alone.append(alone)
    gc.set_threshold(RARELY, *usual[1:])
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        loaded()
        _alone.pop()
        if alone:
            gc.unfreeze()


def may_choose() -> bool:
    """Whether it is for what runs now to say what is passed over: no longer-lived process has."""
    if not (_alone or _preloaded or _others) and gc.get_freeze_count():
        _others.append(True)
    return _alone[-1] if _alone else bool(_preloaded) or not _others


def loaded() -> None:
    """What a command needs is loaded: garbage is looked for as usual, but not among all that."""
    if _usual:
        usual, alone = _usual.pop()
        gc.set_threshold(*usual)
        if alone:
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
    _preloaded.append(True)
    atexit.register(gc.freeze)
