"""Controls Python's garbage collector: rare while a command starts, off while its process ends.

Libraries are a million objects that stay. Scanning them again and again takes a quarter of the time
of importing them, and as much once more at exit, when the system frees all memory anyway.
"""

import atexit
import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

RARELY = 1_000_000  # new objects between two collections; otherwise 700
# While a command starts: the usual thresholds, and whether the command may freeze objects.
_usual: list[tuple[tuple[int, int, int], bool]] = []
# The latter for running commands; and whether the frozen objects were preloaded for commands.
_alone: list[bool] = []
_preloaded: list[bool] = []
# Whether another program has frozen objects, as a suite of tests does. Once seen, this is not
# checked again, since the check takes a tenth of a second where there are many.
_others: list[bool] = []


@contextmanager
def beginning() -> Iterator[None]:
    """Collect garbage rarely inside the context, until `loaded`; not at all at exit."""
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
    """Whether the running code may freeze objects: no code that lives longer has done so."""
    if not (_alone or _preloaded or _others) and gc.get_freeze_count():
        _others.append(True)
    return _alone[-1] if _alone else bool(_preloaded) or not _others


def loaded() -> None:
    """Collect garbage as usual again once a command has loaded, but freeze what it has loaded."""
    if _usual:
        usual, alone = _usual.pop()
        gc.set_threshold(*usual)
        if alone:
            gc.freeze()


@contextmanager
def importing() -> Iterator[None]:
    """Turn garbage collection off inside the context."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def imported(name: str) -> Any:
    """Import a module with garbage collection off."""
    with importing():
        return import_module(name)


def preload(names: Iterable[str]) -> None:
    """Import modules and freeze them for the collector of this process and of its forks."""
    for name in names:
        imported(name)
    gc.freeze()
    _preloaded.append(True)
    atexit.register(gc.freeze)
