"""Starts child processes in sessions of their own, and ends them with all that they started; counts
how often something that dies is restarted before the run stops."""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from strop.support.errors import RunStopped

ROUNDS = 100  # of looking for what was forked meanwhile
_LINE = 4096  # bytes, more than a process has in /proc


def start(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """A child process that no signal to this one's group reaches; without input, unless that is
    among the options of `Popen`.
    """
    given = {"stdin": subprocess.DEVNULL, **options}
    return subprocess.Popen(command, start_new_session=True, **given)


def end(process: "subprocess.Popen[bytes]", grace_seconds: float = 0.0) -> None:
    """End a process that `start` gave, with its descendants and its group, and wait for it.

    grace_seconds: to end by itself after a SIGTERM; 0: none is sent.
    """
    if grace_seconds and process.poll() is None:
        send(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_seconds)
    if process.poll() is None:
        send(process.pid, signal.SIGSTOP)
        end_descendants(process.pid)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def end_descendants(root: int) -> None:
    """End all processes that descend from one. They are stopped first, so that they cannot fork."""
    stopped: set[int] = set()
    for _ in range(ROUNDS):
        new = _descendants(root) - stopped
        for pid in new:
            send(pid, signal.SIGSTOP)
        stopped |= new
        if not new:
            break
    for pid in stopped:
        send(pid, signal.SIGKILL)


def send(pid: int, number: int) -> None:
    """Send a signal to a process, if it is there and ours."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _descendants(root: int) -> set[int]:
    """Children, their children and so on; empty where the system has no /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb", 0) as file:
                parent = int(file.read(_LINE).rpartition(b")")[2].split(None, 2)[1])
                children.setdefault(parent, []).append(int(name))
    found: set[int] = set()
    waiting = [root]
    while waiting:
        theirs = children.get(waiting.pop(), [])
        found.update(theirs)
        waiting += theirs
    return found


class Restarts:
    """Counts the restarts of one thing.

    what: happened to it each time, such as "engine 2 was lost". allowed: restarts in a row, between
    which it did no work.
    """

    def __init__(self, what: str, allowed: int = 2) -> None:
        self.what, self.allowed = what, allowed
        self.in_a_row, self.total = 0, 0

    def worked(self) -> None:
        """It has done work since it was started: what happens next is the first in a row."""
        self.in_a_row = 0

    def count(self, why: str, advice: str = "") -> None:
        """Count one more. Raises RunStopped where it would be one too many in a row."""
        self.in_a_row, self.total = self.in_a_row + 1, self.total + 1
        if self.in_a_row > self.allowed:
            times = f" {self.in_a_row} times in a row" if self.in_a_row > 1 else ""
            raise RunStopped(f"{self.what}{times} ({why}){advice}")
