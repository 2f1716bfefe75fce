"""The parent's handle of one grading process: start, ask, receive, end."""

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import strop
from strop.errors import UserError
from strop.tasks import wire
from strop.tasks.task import RewardSpec

START_SECONDS = 120.0  # imports of the user's module included
MODEL_START_SECONDS = 1800.0  # reading the weights of a reward model
_EXIT_SECONDS = 0.2  # from a closed socket to the end of its process
_ROOT = str(Path(strop.__file__).resolve().parents[1])
# The package is imported from this copy; the folder then leaves the search path again.
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from strop.tasks.grader_worker import main; "
    "sys.path.remove(sys.argv[1]); main(int(sys.argv[2]))"
)


class WorkerDied(Exception):
    """The process ended by itself; the text says how."""


class WorkerProcess:
    """One process that holds the loaded reward functions; starts again when asked after death."""

    def __init__(self, specs: Sequence[RewardSpec], log: Path | None) -> None:
        self.specs = tuple(specs)
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None
        self.deadline = 0.0
        self.facts: list[dict[str, Any]] = []  # of each function: independent rows, own time

    def start(self) -> None:
        """Launch the process and ask it to load the functions; `finish_start` waits for it."""
        self.end()
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = self._launch(theirs.fileno())
        self.channel = ours
        request = {"operation": "load", "specs": self.specs, "path": sys.path}
        self._write(request, self._start_seconds)

    def finish_start(self) -> None:
        """Wait until the functions are loaded.

        Raises UserError for what `load_reward` refuses and for a file that ends the process.
        """
        sources = ", ".join(spec.source for spec in self.specs)
        try:
            self.facts = self.receive()["facts"]
        except WorkerDied as error:
            raise UserError(f"loading the rewards {sources}: {error}: mend the file") from error
        except TimeoutError as error:
            raise UserError(
                f"loading the rewards {sources} took over {self._start_seconds:g} s: "
                "move slow work out of the import"
            ) from error

    def ask(self, request: dict[str, Any], limit: float) -> None:
        """Send a request whose reply is due in `limit` seconds, in a new process if need be."""
        try:
            self._write(request, limit)
        except (OSError, EOFError):  # it died since the last reply; nothing was lost
            self.start()
            self.finish_start()
            self._write(request, limit)

    def receive(self) -> dict[str, Any]:
        """The reply. Raises WorkerDied, TimeoutError, or the UserError that the process met."""
        assert self.channel is not None
        try:
            self.channel.settimeout(max(self.deadline - time.monotonic(), 0.01))
            reply = json.loads(wire.receive(self.channel))
        except EOFError:
            how = self._how_it_died()
            self.end()
            raise WorkerDied(how) from None
        except TimeoutError:
            self.end()
            raise
        if "user_error" in reply:
            raise UserError(reply["user_error"])
        return reply

    def end(self) -> None:
        """End the process at once, with every process that it started."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        if self.process is not None:
            process, self.process = self.process, None
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @property
    def _start_seconds(self) -> float:
        models = any(spec.source.startswith("model:") for spec in self.specs)
        return MODEL_START_SECONDS if models else START_SECONDS

    def _how_it_died(self) -> str:
        """What became of a process that has closed its end of the socket."""
        assert self.process is not None
        try:
            code = self.process.wait(timeout=_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return "the process closed its connection"
        if code < 0:
            return f"the process was ended by {signal.Signals(-code).name}"
        return f"the process ended itself with exit code {code}"

    def _launch(self, fileno: int) -> "subprocess.Popen[bytes]":
        output: IO[bytes] | int = 2  # what rewards print goes to the error stream
        if self.log is not None:
            output = self.log.open("ab")
        try:
            return subprocess.Popen(
                [sys.executable, "-P", "-u", "-c", _PROGRAM, _ROOT, str(fileno)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(fileno,),
                start_new_session=True,
                env={"PYTHONHASHSEED": "0", **os.environ},
            )
        finally:
            if not isinstance(output, int):
                output.close()

    def _write(self, request: dict[str, Any], limit: float) -> None:
        if self.channel is None:
            raise EOFError("not started")
        self.deadline = time.monotonic() + limit
        self.channel.settimeout(limit)
        wire.send(self.channel, pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL))
