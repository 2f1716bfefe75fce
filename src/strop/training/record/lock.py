"""A lock by which one process at a time writes a run; it ends with the process."""

import errno
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

from strop.support.errors import UserError
from strop.support.writing import writing

NAME = ".lock"
HELD = (errno.EACCES, errno.EAGAIN)  # how the kernel says that another process has the lock


class Lock:
    """The file `.lock` of a run's folder, locked by the kernel while a process uses the run.

    The kernel releases it when the process ends, so a killed run needs no cleanup. The file names
    the process for others that are refused. It does not lock within one process.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.handle = -1

    def take(self) -> None:
        """Hold the lock from here on. Raises UserError when another process has it."""
        try:
            with writing(self.path.parent, "the run"):
                self._take()
        except BaseException:
            self.free()
            raise

    def _take(self) -> None:
        while self.handle < 0:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.read(handle, 200).decode(errors="replace").strip()
                os.close(handle)
                if error.errno not in HELD:  # a place that has no locks, say
                    raise
                raise UserError(
                    f"{self.path.parent} is in use by {holder or 'another process'}: wait until "
                    "that has ended, or end it"
                ) from error
            if _is_at(handle, self.path):  # else its last holder has just deleted the file
                self.handle = handle
            else:
                os.close(handle)
        os.truncate(self.handle, 0)
        os.write(self.handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    def free(self) -> None:
        """Release the lock if it is held, and delete its file."""
        if self.handle >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self.handle)
            self.handle = -1


def in_use(folder: Path) -> bool:
    """Returns whether another process holds the lock of a run, without acquiring it."""
    mac = sys.platform == "darwin"  # the fields of C's struct flock stand in another order there
    asked = (0, 0, 0, fcntl.F_WRLCK, 0) if mac else (fcntl.F_WRLCK, 0, 0, 0, 0)
    form = "qqihh" if mac else "hhqqi4x"
    try:
        with (folder / NAME).open("rb") as file:
            answer = fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(form, *asked))
    except FileNotFoundError:
        return False
    return bool(struct.unpack(form, answer)[3 if mac else 0] != fcntl.F_UNLCK)


def _is_at(handle: int, path: Path) -> bool:
    """Whether the open file is the one that lies at the path."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(handle)
    return (found.st_ino, found.st_dev) == (opened.st_ino, opened.st_dev)
