"""The command line in this process, and in processes that can be killed."""

import multiprocessing
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, reduction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from strop.cli import forked as forked_run
from strop.cli.main import main
from strop.tasks import worker_guard
from strop.training import apart

PRELOADED = [*forked_run.PRELOADED, "strop.door.progress", "strop.report.page", apart.MODULE]


class Said(NamedTuple):
    """Exit code and what was printed."""

    code: int
    out: str
    err: str


class Strop:
    """Calls `strop` with words as a user types them, in this process."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self.patch, self.capture = patch, capture

    def __call__(self, *words: str | Path) -> Said:
        self.capture.readouterr()
        self.patch.setattr(sys, "argv", ["strop", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return Said(0 if code is None else int(code), *self.capture.readouterr())


def launch(
    words: Sequence[str | Path],
    output: Path,
    most_bytes: int = 0,
    error: Path | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """A process of its own that runs the command; what it prints goes to the file `output`, and to
    `error` what it prints there, if that is another.

    It is forked from a server that has imported torch once, so it starts in a moment. No file may
    grow beyond `most_bytes` (0: no limit); writing more fails as on a full disk. folder: where it
    works, and looks for modules first; environment: what it has besides.
    """
    return forked(_command, [*map(str, words)], output, error or output, most_bytes, folder,
                  environment or {})  # fmt: skip


def forked(function: Callable[..., None], *given: Any) -> Any:
    """A process of its own that calls a function, forked from that server."""
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=function, args=given)
    process.start()
    return process


def lives(pid: int) -> bool:
    """Whether a process is there that is not only waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ended(words: Sequence[str | Path], folder: Path, seconds: float = 300) -> Said:
    """What the command said that worked in a folder, from its start to its end."""
    with TemporaryDirectory() as place:
        out, error = Path(place, "out"), Path(place, "error")
        process = launch(words, out, error=error, folder=folder)
        process.join(seconds)
        assert process.exitcode is not None, f"it runs on after {seconds} s"
        return Said(process.exitcode, out.read_text(), error.read_text())


def _command(
    words: list[str], output: Path, error: Path, most_bytes: int, folder: Path | None,
    environment: Mapping[str, str],
) -> None:  # fmt: skip
    os.setsid()  # a group of its own, as a shell gives it
    if most_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    for number, path in ((1, output), (2, error)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.update(environment)
    if folder is not None:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
    from_the_same_server()
    sys.argv = ["strop", *words]
    main()


def from_the_same_server() -> None:
    """Let processes that this one begins come from the server that it came from."""
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]


class Descriptor:
    """A file that a new process from the server is handed, open; there it is a number."""

    def __init__(self, fileno: int) -> None:
        self.fileno = fileno

    def __reduce__(self) -> Any:
        return _received, (reduction.DupFd(self.fileno),)


def _received(handed: Any) -> int:
    return int(handed.detach())


class Copied:
    """What `subprocess.Popen` gives, of a guarded process that is forked from the server."""

    def __init__(self, words: Sequence[str], pass_fds: tuple[int], **given: Any) -> None:
        told = {**given["env"]}
        self.process = forked(_guarded, Descriptor(pass_fds[0]), words[-1], told)
        self.pid = self.process.pid
        with suppress(ProcessLookupError):  # it has ended
            while os.getpgid(self.pid) != self.pid:
                time.sleep(0.001)  # a group of its own from the first, as Popen has it

    def poll(self) -> int | None:
        code: int | None = self.process.exitcode
        return code

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("a copied process", timeout or 0)
        return int(self.process.exitcode)


def _guarded(fileno: int, module: str, environment: Mapping[str, str]) -> None:
    os.setsid()
    os.environ.update(environment)
    worker_guard.serve(fileno, os.getppid(), module)


@contextmanager
def collectors_copied() -> Iterator[None]:
    """Inside, processes that collect are forked from the server of `forked`. They are what they
    are otherwise, but for the five seconds in which each would import torch and transformers.
    """
    plain = subprocess.Popen

    def begin(words: Any, *more: Any, **given: Any) -> Any:
        return (Copied if words[-1] == apart.MODULE else plain)(words, *more, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", begin)
        yield
