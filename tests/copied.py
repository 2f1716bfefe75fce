"""The work of a process that is a copy of a server's. It imports little, as every copy does so."""

import os
import sys
from collections.abc import Callable, Mapping
from multiprocessing import reduction
from typing import Any

from strop.support import guarded_process


class Descriptor:
    """A file that a new process from a server is handed, open; there it is a number."""

    def __init__(self, fileno: int) -> None:
        self.fileno = fileno

    def __reduce__(self) -> Any:
        return _received, (reduction.DupFd(self.fileno),)


def _received(handed: Any) -> int:
    return int(handed.detach())


def started(environment: Mapping[str, str], function: Callable[..., None], *given: Any) -> None:
    """Call a function in the environment of who asked for it, not in the server's."""
    os.environ.clear()
    os.environ.update(environment)
    function(*given)


def guarded(fileno: int, output: int, module: str, environment: Mapping[str, str]) -> None:
    """Run `main(channel)` of a module behind its guard; what it prints goes to `output`."""
    os.setsid()
    for number in (1, 2):
        os.dup2(output, number)
    sys.stdout.reconfigure(write_through=True)  # as python -u
    os.environ.update(environment)
    guarded_process.serve(fileno, os.getppid(), module)
