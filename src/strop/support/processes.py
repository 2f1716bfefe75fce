"""Starts child processes in sessions of their own, ends them with all their descendants, counts
restarts until a run has to stop, and the cores for all this."""

import math
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from strop.support.errors import RunStopped

GROUPS = Path("/sys/fs/cgroup")  # limits of a container, by version 2 or 1 of control groups
ROUNDS = 100  # of searching for processes that were forked meanwhile
_LINE = 4096  # bytes, more than the line of a process in /proc


def num_cores() -> int:
    """The number of cores that this process may use; all where the system does not tell."""
    return cores_of_container() or _seen()


def cores_of_container() -> int | None:
    """The cores whose time a container may use, rounded up, where it sees more of them."""
    found = _limit(("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))
    cores = math.ceil(found[0] / found[1]) if found else 0
    return cores if 0 < cores < _seen() else None


def usable_memory() -> int | None:
    """The bytes of memory of this machine, or of its container where that is less; None where the
    system does not tell.
    """
    if "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([whole, *_limit(("memory.max",), ("memory/memory.limit_in_bytes",))])


def _limit(*versions: Sequence[str]) -> list[int]:
    """The numbers in the files of a limit, of the first version of control groups that has them;
    empty without a limit.
    """
    for files in versions:
        if all(map(Path.is_file, places := [GROUPS / file for file in files])):
            words = " ".join(place.read_text() for place in places).split()
            return [] if words[0] in ("max", "-1") else [int(word) for word in words]
    return []


def _seen() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def start(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start a child process that no signal to this process's group reaches. It has no input,
    unless the options of `Popen` give one.
    """
    given = {"stdin": subprocess.DEVNULL, **options}
    return subprocess.Popen(command, start_new_session=True, **given)


def end(process: "subprocess.Popen[bytes]", grace_seconds: float = 0.0) -> None:
    """End a process that `start` returned, with its descendants and its group, and wait for it.

    grace_seconds: time to end by itself after a SIGTERM; 0: no SIGTERM is sent.
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
    """Kill all descendants of a process. They are stopped first, so that they cannot fork."""
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
    """Send a signal to a process, if it exists and this user may."""
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
    """Counts restarts.

    what: the event that causes each one, such as "engine 2 was lost". allowed: restarts in a row
    without work in between.
    """

    def __init__(self, what: str, allowed: int = 2) -> None:
        self.what, self.allowed = what, allowed
        self.in_a_row, self.total = 0, 0

    def worked(self) -> None:
        """Record that work was done since the last start, so that the next restart is the first
        in a row.
        """
        self.in_a_row = 0

    def count(self, why: str, advice: str = "") -> None:
        """Count a restart. Raises RunStopped where there were too many in a row."""
        self.in_a_row, self.total = self.in_a_row + 1, self.total + 1
        if self.in_a_row > self.allowed:
            times = f" {self.in_a_row} times in a row" if self.in_a_row > 1 else ""
            raise RunStopped(f"{self.what}{times} ({why}){advice}")
