"""The parent's handle of a guarded process: start it, end it, say how it died."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import IO

from strop.support import processes
from strop.support.about import SOURCE

_EXIT_SECONDS = 0.5  # from a closed socket to the end of its process
_ROOT = str(SOURCE.parent)
# The package is imported from this copy; the folder then leaves the search path again.
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from strop.support.process_guard import serve; "
    "sys.path.remove(sys.argv[1]); serve(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])"
)


class GuardedProcess:
    """A process that ends with this one, with all that it started, and a socket to it."""

    process: "subprocess.Popen[bytes] | None" = None
    channel: socket.socket | None = None

    def launch(self, module: str, output: IO[bytes] | int = 2) -> socket.socket:
        """Run `main(fileno)` of a module in it, for the other end of the socket that this gives.

        output: where goes what it prints; 2: the error stream.
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
        """Tell it that nothing more comes, and give it so long to end by itself."""
        if self.process is not None and self.channel is not None:
            with contextlib.suppress(OSError):  # it is gone
                self.channel.shutdown(socket.SHUT_WR)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)

    def end(self) -> None:
        """End it at once, with every process that it started.

        The socket is closed last: so it never takes that for the end of this process.
        """
        if self.process is not None:
            process, self.process = self.process, None
            processes.end(process)
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def how_it_died(self) -> str:
        """What became of a process that has closed its end of the socket."""
        assert self.process is not None
        try:
            code = self.process.wait(timeout=_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return "the process closed its connection"
        if code < 0:
            return f"the process was ended by {signal.Signals(-code).name}"
        return f"the process ended itself with exit code {code}"
