"""The watchdog: it notices and names a process of a run that hangs, by its heartbeats.

A process that dies breaks its connections, which ends all processes. A process that hangs breaks
none, and waiting for it looks like waiting for long work. So in each of several processes two
threads run beside the training. The first thread writes heartbeats to the common store
(`torch.distributed.TCPStore`), which say where in the run the process is, and reads those of other
processes: the first process reads all, the others read the first. The second thread checks whether
anything has changed. Long work does not count as silence, because the threads continue beside it.

Silence is counted in checks, not by the clock: processes that were all stopped for an hour, for
example by Ctrl-Z, find each other alive.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

SETTING = "training.process_timeout_seconds"
LOOKS = 8  # checks within the timeout
MOST_SECONDS = 10.0  # between two checks
LEAVING_SECONDS = 5.0  # for the last heartbeat to reach the store
LEFT = b"left"
TORCH = os.path.dirname(torch.__file__) + os.sep
DISTRIBUTED = os.path.dirname(torch.distributed.__file__) + os.sep
FILES = os.path.join(DISTRIBUTED, "checkpoint", "")  # its modules that write to the disk
THREAD = re.compile(r"hread 0x([0-9a-f]+) ")
CALL = re.compile(r'  File "(.*)", line (\d+) in ')
VERDICT = "strop/silent"  # key in the store: the report about a process that hangs


class Call(NamedTuple):
    """A frame of a call stack: the file and the line that is executing."""

    path: str
    line: int


class Calls:
    """Reports which lines a thread of this process is executing, the innermost call first.

    `faulthandler` writes the call stack. Walking the frames of a running thread
    (`sys._current_frames`) can crash or deadlock Python 3.11 (cpython issues 99110 and 106883).
    """

    def __init__(self, thread: int) -> None:
        self.thread = thread
        with tempfile.TemporaryFile() as file:
            self.file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.file)
        self.lock = threading.Lock()

    def now(self) -> list[Call]:
        """Returns the calls; empty when the disk is full or there are more than 100 threads."""
        with self.lock:
            os.lseek(self.file, 0, os.SEEK_SET)
            faulthandler.dump_traceback(self.file)
            text = os.pread(self.file, os.lseek(self.file, 0, os.SEEK_CUR), 0)
        _, *pieces = THREAD.split(text.decode(errors="replace"))
        for name, calls in zip(pieces[::2], pieces[1::2], strict=True):
            if int(name, 16) == self.thread:
                return [Call(path, int(line)) for path, line in CALL.findall(calls)]
        return []


class Signs:
    """Sends the heartbeats of a process and watches those of the others.

    place: where in the run it is; empty: outside steps, where it may be idle for long.
    """

    def __init__(self, number: int, count: int) -> None:
        self.number, self.count = number, count
        self.place, self.patience = "", 0
        self.limit, self.folder = 0.0, Path()
        self.store: Any = None
        self.speaks: Callable[[], bool] = lambda: True
        self.calls: Calls  # of the training thread
        self.received: dict[int, bytes] = {}  # the newest heartbeat of each watched process
        self.rounds = 0  # of writing and reading heartbeats
        self.seen: dict[str, tuple[object, int]] = {}  # what a check found, and how often in a row
        self.left = threading.Event()
        self.threads: list[threading.Thread] = []

    def watch(
        self, limit: float, folder: Path, open_store: Callable[[], Any], speaks: Callable[[], bool]
    ) -> None:
        """Start watching, or continue with another limit (s) and run folder.

        open_store: opens a separate connection to the store. speaks: returns whether this process
        reports why the run ends.
        """
        self.limit, self.folder = limit, folder
        if self.threads:
            return
        self.store, self.speaks = open_store(), speaks
        self.calls = Calls(threading.get_ident())
        for work in (self._exchange, self._check):
            self.threads.append(threading.Thread(target=work, daemon=True))
            self.threads[-1].start()

    @property
    def again(self) -> str:
        """The sentence with the command that resumes the run; empty where none has begun."""
        started = bool(self.limit) and (self.folder / "config.toml").exists()
        return f" Resume with: strop train --resume {self.folder}" if started else ""

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Lets this process stand still, because what it waits for has its own timeouts."""
        self.patience += 1
        try:
            yield
        finally:
            self.patience -= 1

    def leave(self) -> None:
        """Report that this process ends, and stop watching."""
        self.left.set()
        for thread in self.threads:
            thread.join(LEAVING_SECONDS)

    # ---- implementation

    @property
    def watched(self) -> range:
        """Numbers of the processes whose heartbeats this one reads."""
        return range(1) if self.number else range(1, self.count)

    @property
    def _pause(self) -> float:
        return min(self.limit / LOOKS, MOST_SECONDS)

    def _exchange(self) -> None:
        """Write and read heartbeats until the process leaves."""
        try:
            while not self.left.is_set():
                self.store.set(_key(self.number), self._heartbeat())
                for other in self.watched:
                    if self.store.check([_key(other)]):
                        self.received[other] = self.store.get(_key(other))
                self.rounds += 1
                self.left.wait(self._pause)
            self.store.set(_key(self.number), LEFT)
        except torch.distributed.DistError:  # the launcher is gone, and ends the processes
            self.left.set()

    def _heartbeat(self) -> str:
        """Returns a new heartbeat, which contains the line that is executing now."""
        own = (call for call in self.calls.now() if not call.path.startswith(TORCH))
        call = next(own, None)
        line = f"{Path(call.path).name}, line {call.line}" if call else ""
        return json.dumps([self.rounds, os.getpid(), socket.gethostname(), self.place, line])

    def _check(self) -> None:
        """Check for a hang until the process leaves or one is found."""
        read = 0
        while not self.left.wait(self._pause):
            since = f"for {self.limit:g} s ({SETTING})"
            if self._is_unchanged("store", self.rounds):
                place = ":".join(os.environ.get(n, "") for n in ("MASTER_ADDR", "MASTER_PORT"))
                self._end(
                    f"process {self.number} of {self.count} had no answer {since} from the store "
                    f"of all processes at {place}: that machine may be gone",
                    shared=False,
                )
            news, read = self.rounds > read, self.rounds
            for other in self.watched if news else ():  # only while the store answers
                heartbeat = self.received.get(other)
                if heartbeat != LEFT and self._is_unchanged(f"process {other}", heartbeat):
                    name = self._describe(other, heartbeat)
                    self._end(f"{name} gave no sign of life {since}: stopped, or cut off")
            if self._is_unchanged("here", self._cpu_time()):
                name = self._describe(self.number, self._heartbeat().encode())
                self._end(f"{name} did nothing {since}; give more if that may take so long")

    def _is_unchanged(self, what: str, now: object) -> bool:
        """Returns whether a value has not changed for the time limit."""
        before, looks = self.seen.get(what, (None, 0))
        looks = looks + 1 if now == before else 0
        self.seen[what] = now, looks
        return looks * self._pause >= self.limit

    def _cpu_time(self) -> Any:
        """Returns the CPU time of the training thread, or a new object when it may stand still.

        It may stand still while it waits for other processes.
        """
        clock = getattr(time, "pthread_getcpuclockid", None)  # macOS has none
        if not self.place or self.patience or clock is None or self._waits():
            return object()
        return time.clock_gettime(clock(self.calls.thread))

    def _waits(self) -> bool:
        """Returns whether the training thread waits for other processes, as far as is known."""
        calls = self.calls.now()
        inside = (call.path for call in calls if call.path.startswith(DISTRIBUTED))
        last = next(inside, FILES if calls else DISTRIBUTED)
        return not last.startswith(FILES)

    def _describe(self, number: int, heartbeat: bytes | None) -> str:
        """Describes a process and where it was at its last heartbeat."""
        name = f"process {number} of {self.count}"
        if heartbeat is None:
            return name
        _, own, host, place, line = json.loads(heartbeat)
        return f"{name} ({own} on {host}; last at {place or 'the beginning'}, {line})"

    def _end(self, text: str, shared: bool = True) -> None:
        """End this process and thereby all others: its training thread may never return.

        shared: whether other processes may report this too, so that one has to be chosen.
        """
        try:
            if not shared or self.speaks():
                print(f"stopped: {text}.{self.again}", file=sys.stderr, flush=True)
                if shared:
                    self.store.set(VERDICT, text)
        finally:  # also when the store is gone
            os._exit(1)


def _key(number: int) -> str:
    return f"strop/sign/{number}"


def verdict(store: Any) -> str:
    """Returns the report in a store about a process that hangs; empty if there is none."""
    return store.get(VERDICT).decode() if store.check([VERDICT]) else ""
