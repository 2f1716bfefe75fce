"""Signs of life of a run's processes, so that one that hangs is noticed and named.

A process that dies breaks its connections, which ends all. One that hangs breaks none, and waiting
for it looks like waiting for work that takes long. So two threads run beside the training in each
of several processes. One tells in their common store (`torch.distributed.TCPStore`) that the
process lives and where in the run it is, and reads what others tell: the first process reads all,
the others the first. The second thread looks whether anything new has come. Work that takes long
is no silence, as the threads go on beside it.

Silence is counted in looks, not by the clock: processes that were all stopped for an hour, as by
Ctrl-Z, find each other alive.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from strop.training.calls import Calls

SETTING = "training.process_timeout_seconds"
LOOKS = 8  # in the time after which silence counts
MOST_SECONDS = 10.0  # between two looks
LEAVING_SECONDS = 5.0  # for the last sign to reach the store
LEFT = b"left"
TORCH = os.path.dirname(torch.__file__) + os.sep
DISTRIBUTED = os.path.dirname(torch.distributed.__file__) + os.sep
FILES = os.path.join(DISTRIBUTED, "checkpoint", "")  # of it what writes to the disk
VERDICT = "strop/silent"  # in the store: what was said of a process that hangs


class Signs:
    """What a process tells the others of a run, and hears of them.

    place: where in the run it is; empty: not in a step, where it may stand still for long.
    """

    def __init__(self, number: int, count: int) -> None:
        self.number, self.count = number, count
        self.place, self.patience = "", 0
        self.limit, self.folder = 0.0, Path()
        self.store: Any = None
        self.speaks: Callable[[], bool] = lambda: True
        self.calls: Calls  # of the thread that trains
        self.heard: dict[int, bytes] = {}  # the newest sign of each that is watched
        self.rounds = 0  # of telling and reading
        self.seen: dict[str, tuple[Any, int]] = {}  # what a look found, and how often it did since
        self.left = threading.Event()
        self.threads: list[threading.Thread] = []

    def watch(
        self, limit: float, folder: Path, open_store: Callable[[], Any], speaks: Callable[[], bool]
    ) -> None:
        """Begin, or go on with another limit (s) and run folder.

        open_store: gives a connection of its own to the store. speaks: whether this process is to
        say why the run ends.
        """
        self.limit, self.folder = limit, folder
        if self.threads:
            return
        self.store, self.speaks = open_store(), speaks
        self.calls = Calls(threading.get_ident())
        for work in (self._tell, self._look):
            self.threads.append(threading.Thread(target=work, daemon=True))
            self.threads[-1].start()

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Inside, this process may stand still: what it waits for has limits of its own."""
        self.patience += 1
        try:
            yield
        finally:
            self.patience -= 1

    def leave(self) -> None:
        """Tell that this process ends, and watch no more."""
        self.left.set()
        for thread in self.threads:
            thread.join(LEAVING_SECONDS)

    # ---- from here on: how

    @property
    def watched(self) -> range:
        """Numbers of the processes whose signs this one reads."""
        return range(1) if self.number else range(1, self.count)

    @property
    def _pause(self) -> float:
        return min(self.limit / LOOKS, MOST_SECONDS)

    def _tell(self) -> None:
        """Tell and read until the process leaves."""
        try:
            while not self.left.is_set():
                self.store.set(_key(self.number), self._sign())
                for other in self.watched:
                    if self.store.check([_key(other)]):
                        self.heard[other] = self.store.get(_key(other))
                self.rounds += 1
                self.left.wait(self._pause)
            self.store.set(_key(self.number), LEFT)
        except torch.distributed.DistError:  # who started the processes is gone, and ends them
            self.left.set()

    def _sign(self) -> str:
        """A sign of life, different from the one before, with the line that is run now."""
        own = (call for call in self.calls.now() if not call.path.startswith(TORCH))
        call = next(own, None)
        line = f"{Path(call.path).name}, line {call.line}" if call else ""
        return json.dumps([self.rounds, os.getpid(), socket.gethostname(), self.place, line])

    def _look(self) -> None:
        """Look for what stands still, until the process leaves or one is found that hangs."""
        read = 0
        while not self.left.wait(self._pause):
            since = f"for {self.limit:g} s ({SETTING})"
            if self._stands("store", self.rounds):
                place = ":".join(os.environ.get(n, "") for n in ("MASTER_ADDR", "MASTER_PORT"))
                self._end(
                    f"process {self.number} of {self.count} had no answer {since} from the store "
                    f"of all processes at {place}: that machine may be gone",
                    said=False,
                )
            news, read = self.rounds > read, self.rounds
            for other in self.watched if news else ():  # while the store answers
                sign = self.heard.get(other)
                if sign != LEFT and self._stands(f"process {other}", sign):
                    name = self._named(other, sign)
                    self._end(f"{name} gave no sign of life {since}: stopped, or cut off")
            if self._stands("here", self._spent()):
                name = self._named(self.number, self._sign().encode())
                self._end(f"{name} did nothing {since}; give more if that may take so long")

    def _stands(self, what: str, now: Any) -> bool:
        """Whether this has been the same for the limit."""
        before, looks = self.seen.get(what, (None, 0))
        looks = looks + 1 if now == before else 0
        self.seen[what] = now, looks
        return looks * self._pause >= self.limit

    def _spent(self) -> Any:
        """Processor time of the thread that trains; something new where it may stand still.

        It may where it waits for other processes.
        """
        clock = getattr(time, "pthread_getcpuclockid", None)  # macOS has none
        if not self.place or self.patience or clock is None or self._waits():
            return object()
        return time.clock_gettime(clock(self.calls.thread))

    def _waits(self) -> bool:
        """Whether the thread that trains waits for other processes, as far as is known."""
        calls = self.calls.now()
        inside = (call.path for call in calls if call.path.startswith(DISTRIBUTED))
        last = next(inside, FILES if calls else DISTRIBUTED)
        return not last.startswith(FILES)

    def _named(self, number: int, sign: bytes | None) -> str:
        """A process, and where it was when it told last."""
        name = f"process {number} of {self.count}"
        if sign is None:
            return name
        _, own, host, place, line = json.loads(sign)
        return f"{name} ({own} on {host}; last at {place or 'the beginning'}, {line})"

    def _end(self, text: str, said: bool = True) -> None:
        """End this process, and with it all: its training thread may never come back.

        said: whether others may say it too, so that one has to be chosen.
        """
        try:
            if not said or self.speaks():
                begun = (self.folder / "config.toml").exists()
                again = f" Go on with: strop train --resume {self.folder}" if begun else ""
                print(f"stopped: {text}.{again}", file=sys.stderr, flush=True)
                if said:
                    self.store.set(VERDICT, text)
        finally:  # also where the store is gone
            os._exit(1)


def _key(number: int) -> str:
    return f"strop/sign/{number}"


def verdict(store: Any) -> str:
    """What was said in a store of a process that hangs; empty where nothing was."""
    return store.get(VERDICT).decode() if store.check([VERDICT]) else ""
