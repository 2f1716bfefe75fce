"""Where a thread of this process is, told by another one."""

import faulthandler
import os
import re
import tempfile
import threading
import weakref
from typing import NamedTuple

THREAD = re.compile(r"hread 0x([0-9a-f]+) ")
CALL = re.compile(r'  File "(.*)", line (\d+) in ')


class Call(NamedTuple):
    """A file, and the line of it that is run."""

    path: str
    line: int


class Calls:
    """What a thread has called and not come back from, the last one first; empty: not known.

    `faulthandler` writes it down. To walk the thread's frames (`sys._current_frames`) while it runs
    can crash Python 3.11 or lock it up (cpython issues 99110 and 106883).
    """

    def __init__(self, thread: int) -> None:
        self.thread = thread
        with tempfile.TemporaryFile() as file:
            self.file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.file)
        self.turn = threading.Lock()

    def now(self) -> list[Call]:
        """The calls; none are known where the disk is full or there are more than 100 threads."""
        with self.turn:
            os.lseek(self.file, 0, os.SEEK_SET)
            faulthandler.dump_traceback(self.file)
            text = os.pread(self.file, os.lseek(self.file, 0, os.SEEK_CUR), 0)
        _, *pieces = THREAD.split(text.decode(errors="replace"))
        for name, calls in zip(pieces[::2], pieces[1::2], strict=True):
            if int(name, 16) == self.thread:
                return [Call(path, int(line)) for path, line in CALL.findall(calls)]
        return []
