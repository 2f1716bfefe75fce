"""Writes files so that no reader sees half of one, and reports a full disk."""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from strop.support.errors import RunStopped, UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, the user's quota, a file's limit
# Some libraries report it only in words: "(os error 28)"; torch, that its archive is too short.
IN_WORDS = re.compile(
    rf"os error ({'|'.join(map(str, FULL))})\b|No space left|File too large|Disk quota exceeded"
    r"|PytorchStreamWriter|unexpected pos"
)


def write_whole(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a file so that no reader sees half of it. Raises OSError when that fails.

    mode: permissions of a new file.

    A path that is no regular file, such as a pipe or a device, is written to and never replaced.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        if unfinished.is_file() or not unfinished.exists():  # a link in a folder from others leads
            unfinished.unlink(missing_ok=True)  # to any file of this user's, there or not
        number = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with open(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
    except BaseException:  # an interrupt must not leave the unfinished file either
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def append_line(path: Path, line: str) -> None:
    """Append a line to a file, as a whole or not at all. Raises OSError in the second case."""
    with path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        data = f"{line}\n".encode()
        try:
            if file.write(data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(path, end)
            raise


def free_bytes(folder: Path) -> int:
    """The free space on the disk of a folder, which may not exist yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def check_room(folder: Path, what: str, needed: int) -> None:
    """Raise RunStopped where a disk has less space than is needed."""
    if free_bytes(folder) < needed:
        raise _no_room(folder, what, needed)


@contextlib.contextmanager
def writing(
    folder: Path,
    what: str,
    needed: int = 0,
    failures: tuple[type[Exception], ...] = (OSError,),
    otherwise: type[Exception] = UserError,
) -> Iterator[None]:
    """Convert errors of writing `what` to the folder inside the context: RunStopped for a full
    disk, `otherwise` for a place that cannot be written to.

    needed: bytes that it takes, where that is known. failures: the writers' exceptions.
    """
    try:
        yield
    except (RunStopped, UserError):
        raise
    except failures as error:
        code = error.errno if isinstance(error, OSError) else None
        if code in FULL or IN_WORDS.search(str(error)):
            raise _no_room(folder, what, needed) from error
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise otherwise(
            f"{what} could not be written to {folder}: {' '.join(reason.split())}"
        ) from error


def _no_room(folder: Path, what: str, needed: int) -> RunStopped:
    wanted = f", {_size(needed)} are needed" if needed else ""
    return RunStopped(
        f"{what} could not be written to {folder}: no room, {_size(free_bytes(folder))} are free"
        f"{wanted}; make room there (another limit of yours may count too), what was written "
        "before is whole"
    )


def _size(num_bytes: int) -> str:
    size, unit = float(num_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
