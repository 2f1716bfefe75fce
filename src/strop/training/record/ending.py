"""Records how a run ended, so that it can still be read when the terminal is gone.

A process that is killed writes nothing, and a run that goes on deletes the file.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from strop.support.errors import RunStopped, UserError
from strop.support.files import json_of
from strop.support.writing import write_whole, writing

NAME = "end.json"


@dataclass(frozen=True)
class Ending:
    """The end of a run.

    step: the last finished one. finished: no step was left to do. why: the error; empty: none.
    """

    step: int
    finished: bool
    why: str = ""
    time: str = ""

    def write(self, folder: Path) -> None:
        """Write the file. Raises RunStopped on a full disk."""
        with writing(folder, NAME, otherwise=RunStopped):
            write_whole(folder / NAME, json.dumps(asdict(self), indent=1) + "\n")


@contextmanager
def recording(
    folder: Path,
    state: Callable[[], Ending],
    writes: bool,
    loss: Callable[[BaseException], str],
) -> Iterator[None]:
    """Write how the steps inside end, in place of an earlier end. writes: whether this process is
    the one that does so.

    state: how far the run is. loss: the text for an error that only says that another process is
    gone, empty for any other. Raises RunStopped on a full disk; where the steps have failed
    already, their own error is raised.
    """
    if writes:
        (folder / NAME).unlink(missing_ok=True)
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(RunStopped):
            if writes:
                replace(state(), why=loss(error) or _why(error), time=_now()).write(folder)
        raise
    if writes:
        replace(state(), time=_now()).write(folder)


def read(folder: Path) -> Ending | None:
    """The recorded end of a run; None where it has none. Raises UserError for a damaged file."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        found = json_of(path.read_bytes())
        step, finished = int(found["step"]), bool(found["finished"])
        return Ending(step, finished, str(found["why"]), str(found["time"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} cannot be read: restore it, or remove it to continue without it"
        ) from error


def _why(error: BaseException) -> str:
    """The error in one text: its message, and what was added to it on its way."""
    if isinstance(error, GeneratorExit):  # a script that takes no more steps
        return ""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    text = str(error) if isinstance(error, UserError | RunStopped) else _named(error)
    return "\n".join([text, *getattr(error, "__notes__", ())])


def _named(error: BaseException) -> str:
    """The last line that a traceback of the error would have."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
