"""A process that ends with this one, with all its descendants, and messages over a socket to it.

Messages are eight bytes of length, then the content. The parent has a handle; a guard process
stands between it and the working process, so that no descendant outlives it: a reward may start
processes in sessions of their own, which no signal to a group reaches. On Linux the guard adopts
them when their parents are gone, so all of them descend from it. When the working process ends, or
the trainer does, the guard ends the remaining ones, and then itself in the same way.
"""

import ctypes
import faulthandler
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import IO

from strop.support import processes
from strop.support.about import SOURCE
from strop.support.garbage_collection import preload

LAST_LOOK_SECONDS = 0.1  # for reading data that has arrived when the time is over
_LENGTH = struct.Struct("!Q")


def send(channel: socket.socket, content: bytes) -> None:
    """Write one message. Raises OSError when the other end is gone or does not read in time."""
    channel.sendall(_LENGTH.pack(len(content)) + content)


def receive(channel: socket.socket, deadline: float | None = None) -> bytes:
    """Read one message. Raises EOFError when the other end is gone, TimeoutError if it is late.

    deadline: of the whole message, by `time.monotonic`; data that has arrived by then is read.
    """
    if deadline is not None:
        deadline = max(deadline, time.monotonic() + LAST_LOOK_SECONDS)
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size, deadline))
    return _exactly(channel, length, deadline)


def _exactly(channel: socket.socket, length: int, deadline: float | None) -> bytes:
    content = bytearray()
    while len(content) < length:
        if deadline is not None:
            channel.settimeout(max(deadline - time.monotonic(), 1e-3))
        try:
            piece = channel.recv(min(length - len(content), 1 << 20))
        except ConnectionError as error:
            raise EOFError("the other end is gone") from error
        if not piece:
            raise EOFError("the other end is gone")
        content += piece
        if deadline is not None and time.monotonic() > deadline and len(content) < length:
            raise TimeoutError("the message is late")
    return bytes(content)


_EXIT_SECONDS = 0.5  # from a closed socket to the end of its process
_ROOT = str(SOURCE.parent)
# The package is imported from this copy; the folder is then removed from the search path.
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from strop.support.guarded_process import serve; "
    "sys.path.remove(sys.argv[1]); serve(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])"
)


class GuardedProcess:
    """A process that ends with this one, with all its descendants, and a socket to it."""

    process: "subprocess.Popen[bytes] | None" = None
    channel: socket.socket | None = None

    def launch(self, module: str, output: IO[bytes] | int = 2) -> socket.socket:
        """Run `main(channel)` of a module in the process, and return this end of its socket.

        output: the file for its prints; 2: the error stream.
        """
        self.end()
        words = ["-P", "-u", "-c", _PROGRAM, _ROOT]
        ours, theirs = socket.socketpair()
        with theirs:
            self.channel = ours
            self.process = processes.start(
                [sys.executable, *words, str(theirs.fileno()), str(os.getpid()), module],
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                env={"PYTHONHASHSEED": "0", **os.environ},
            )
        return ours

    def leave(self, seconds: float) -> None:
        """Close this direction of the socket, and give the process time to end by itself."""
        if self.process is not None and self.channel is not None:
            with suppress(OSError):  # the process is gone
                self.channel.shutdown(socket.SHUT_WR)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)

    def end(self) -> None:
        """End the process at once, with all its descendants.

        The socket is closed last, so that the process never takes that for the end of this one.
        """
        if self.process is not None:
            process, self.process = self.process, None
            processes.end(process)
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def how_it_died(self) -> str:
        """How a process died that has closed its end of the socket."""
        assert self.process is not None
        try:
            code = self.process.wait(timeout=_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return "the process closed its connection"
        if code < 0:
            return f"the process was ended by {signal.Signals(-code).name}"
        return f"the process ended itself with exit code {code}"


_POLL_SECONDS = 1.0
_SET_CHILD_SUBREAPER, _SET_PDEATHSIG = 36, 1  # of prctl


def serve(fileno: int, trainer: int, module: str) -> None:
    """Run `main(channel)` of a module in a process of its own, for the process `trainer`, which
    holds the other end of the socket.
    """
    if sys.platform == "linux":
        system = ctypes.CDLL(None)
        system.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # A trainer stops the guard before it kills it, and may be killed in between.
        system.prctl(_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
    worker = os.fork()
    if worker == 0:
        preload([module])  # not into the guard's memory
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles Ctrl-C
        faulthandler.enable(all_threads=False)
        os.set_inheritable(fileno, False)
        sys.modules[module].main(socket.socket(fileno=fileno))
    os.close(fileno)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the trainer decides
    threading.Thread(target=_end_with, args=(trainer,), daemon=True).start()
    ended, status = os.wait()
    while ended != worker:  # an adopted process
        ended, status = os.wait()
    processes.end_descendants(os.getpid())
    _leave(status)


def _end_with(trainer: int) -> None:
    """End all processes when the trainer is gone, even if another one holds its socket open."""
    while os.getppid() == trainer:
        threading.Event().wait(_POLL_SECONDS)
    processes.end_descendants(os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)


def _leave(status: int) -> None:
    """End this process in the same way as the working process ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # of SIGKILL
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))
