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
HELD = (errno.EACCES, errno.EAGAIN)  # how the kernel says that somebody else has the lock
# A lock of the open file, where the system has such. A lock of the process (F_SETLK) would be lost
# as soon as anything in the process, such as a watch of the run, closes the same file.
SET = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK)
GET = getattr(fcntl, "F_OFD_GETLK", fcntl.F_GETLK)
MAC = sys.platform == "darwin"  # the fields of C's struct flock stand in another order there
FLOCK = "qqihh" if MAC else "hhqqi4x"
WHOLE_FILE = (0, 0, 0, fcntl.F_WRLCK, 0) if MAC else (fcntl.F_WRLCK, 0, 0, 0, 0)


class Lock:
    """The file `.lock` of a run's folder, locked by the kernel while a process uses the run.

    The kernel releases it when the process ends, so a killed run needs no cleanup. The file names
    the process for others that are refused.
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
                fcntl.fcntl(handle, SET, struct.pack(FLOCK, *WHOLE_FILE))
            except OSError as error:
                holder = os.read(handle, 200).decode(errors="replace").strip()
                os.close(handle)
                if error.errno not in HELD:  # such as a file system without locks
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
    """Returns whether somebody holds the lock of a run, without acquiring it."""
    try:
        with (folder / NAME).open("rb") as file:
            answer = fcntl.fcntl(file, GET, struct.pack(FLOCK, *WHOLE_FILE))
    except FileNotFoundError:
        return False
    return bool(struct.unpack(FLOCK, answer)[3 if MAC else 0] != fcntl.F_UNLCK)


def _is_at(handle: int, path: Path) -> bool:
    """Whether the open file is the one that lies at the path."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(handle)
    return (found.st_ino, found.st_dev) == (opened.st_ino, opened.st_dev)
