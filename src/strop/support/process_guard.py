"""The process between the trainer and one that works for it: nothing that it starts outlives it.

A reward may start processes in sessions of their own, which no signal to a group reaches. On Linux
the guard adopts them when their parents are gone, so all of them descend from it. When the working
process ends, or the trainer does, the guard ends what is left, and then itself in the same way.
"""

import ctypes
import os
import resource
import signal
import sys
import threading
from contextlib import suppress

from strop.support.garbage_collection import imported
from strop.support.processes import end_descendants

_POLL_SECONDS = 1.0
_SET_CHILD_SUBREAPER = 36  # of prctl


def serve(fileno: int, trainer: int, module: str) -> None:
    """Run `main(fileno)` of a module in a process of its own for the process `trainer`, which holds
    the other end of the socket.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    worker = os.fork()
    if worker == 0:
        imported(module).main(fileno)  # not into the guard's memory
    os.close(fileno)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the trainer decides
    threading.Thread(target=_end_with, args=(trainer,), daemon=True).start()
    ended, status = os.wait()
    while ended != worker:  # an adopted one
        ended, status = os.wait()
    end_descendants(os.getpid())
    _leave(status)


def _end_with(trainer: int) -> None:
    """End everything when the trainer is gone, even if something else holds its socket open."""
    while os.getppid() == trainer:
        threading.Event().wait(_POLL_SECONDS)
    end_descendants(os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)


def _leave(status: int) -> None:
    """End as the working process did."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # of SIGKILL
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))
