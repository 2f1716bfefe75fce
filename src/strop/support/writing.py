"""Files that are never seen half written, and what is said when a disk is full."""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from strop.support.errors import RunStopped, UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, the user's share, a file's limit
# Libraries say it in words alone: "(os error 28)"; torch when its archive came out too short.
IN_WORDS = re.compile(
    rf"os error ({'|'.join(map(str, FULL))})\b|No space left|File too large|Disk quota exceeded"
    r"|PytorchStreamWriter|unexpected pos"
)


def write_whole(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a file so that it is never seen half written. Raises OSError when it cannot be.

    mode: who may read it, where it is new.

    What is no file, such as a pipe or a device, is written to as it is and never replaced.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        number = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with open(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
    except BaseException:  # an interrupt leaves nothing behind either
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def append_line(path: Path, line: str) -> None:
    """Append a line that is on the disk as a whole or not at all. Raises OSError for the second."""
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
    """What may still be written on the disk of a folder that need not be there yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def check_room(folder: Path, what: str, needed: int) -> None:
    """Raise RunStopped where a disk has less room than something is about to take."""
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
    """Inside, `what` is written to the folder. Raises RunStopped for a full disk, `otherwise` for
    a place that cannot be written to.

    needed: bytes that it takes, where that is known. failures: how those who write say so.
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
