"""The command line in this process, and in processes that can be killed."""

import multiprocessing
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from copied import Descriptor, guarded, started

from strop.cli.main import main
from strop.comparison import child
from strop.rewards import grader_process
from strop.training.collect import asynchronous

GRADER = grader_process._WORKER
# The modules that a copy's function imports are here.
OWN = str(Path(__file__).parent)
PRELOADED = [
    *child.PRELOADED, "strop.api.progress", "strop.report.page", asynchronous.MODULE, __name__,
]  # fmt: skip
SERVER = "preloaded"
KEY = "TESTS_SERVER_KEY"  # what a server asks from Python 3.14 on; empty before
# A separate server for grading processes, without torch: it starts, and is copied, in a moment.
SMALL = forkserver.ForkServer()
SMALL.set_forkserver_preload(["copied", GRADER])


class CommandResult(NamedTuple):
    """Exit code and what was printed."""

    code: int
    out: str
    err: str


class Strop:
    """Calls `strop` with words as a user types them, in this process."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self.patch, self.capture = patch, capture

    def __call__(self, *words: str | Path) -> CommandResult:
        self.capture.readouterr()
        self.patch.setattr(sys, "argv", ["strop", *map(str, words)])
        with pytest.raises(SystemExit) as ended, graders_copied():
            main()
        code = ended.value.code
        return CommandResult(0 if code is None else int(code), *self.capture.readouterr())


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
    return _from_server(server(), function, *given)


def server() -> Any:
    """The server that has imported torch once."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([SERVER])
    return forkserver._forkserver


def _from_server(server: Any, function: Callable[..., None], *given: Any) -> Any:
    """A process of its own that calls a function in this environment, forked from a server."""
    context: Any = multiprocessing.get_context("forkserver")
    environment = dict(os.environ)
    with pytest.MonkeyPatch.context() as patch:
        # The script that runs the tests is nothing to a copy, which would run it first.
        patch.delattr(sys.modules["__main__"], "__file__", raising=False)
        patch.setattr(forkserver, "connect_to_new_process", server.connect_to_new_process)
        patch.setenv("PYTHONPATH", OWN, prepend=os.pathsep)
        if server is SMALL:  # as a grader has it
            patch.setenv("PYTHONHASHSEED", "0")
        server.ensure_running()
        environment[KEY] = getattr(server, "_forkserver_authkey", b"").hex()
        process = context.Process(target=started, args=(environment, function, *given))
        process.start()
    return process


def lives(pid: int) -> bool:
    """Whether a process is there that is not only waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ended(words: Sequence[str | Path], folder: Path, seconds: float = 300) -> CommandResult:
    """What the command said that worked in a folder, from its start to its end."""
    with TemporaryDirectory() as place:
        out, error = Path(place, "out"), Path(place, "error")
        process = launch(words, out, error=error, folder=folder)
        process.join(seconds)
        assert process.exitcode is not None, f"it runs on after {seconds} s"
        return CommandResult(process.exitcode, out.read_text(), error.read_text())


def _command(
    words: list[str], output: Path, error: Path, most_bytes: int, folder: Path | None,
    environment: Mapping[str, str],
) -> None:  # fmt: skip
    os.setsid()  # a group of its own, as a shell gives it
    if most_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    for number, path in ((1, output), (2, error)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    # Those of the server know whether its output was a file, a pipe or a terminal.
    sys.stdout, sys.stderr = (
        os.fdopen(number, "w", 1 if number == 2 or os.isatty(number) else -1, closefd=False)
        for number in (1, 2)
    )
    os.environ.update(environment)
    if folder is not None:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
    from_the_same_server()
    sys.argv = ["strop", *words]
    main()


def from_the_same_server() -> None:
    """Let processes that this one begins come from the server that it came from."""
    known: Any = forkserver._forkserver
    known.ensure_running = lambda: None
    known._forkserver_authkey = bytes.fromhex(os.environ[KEY])


class Copied:
    """What `subprocess.Popen` gives, of a guarded process that is forked from a server."""

    def __init__(self, words: Sequence[str], pass_fds: tuple[int], **given: Any) -> None:
        output, module = given["stdout"], words[-1]
        number = output if isinstance(output, int) else output.fileno()
        server = SMALL if module == GRADER else forkserver._forkserver
        told = (Descriptor(pass_fds[0]), Descriptor(number), module, {**given["env"]})
        self.process = _from_server(server, guarded, *told)
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


@contextmanager
def collectors_copied() -> Iterator[None]:
    """Inside, processes that collect are forked from the server of `forked`. They are what they
    are otherwise, but for the five seconds in which each would import torch and transformers.
    """
    server()
    with _copied(asynchronous.MODULE):
        yield


@contextmanager
def graders_copied() -> Iterator[None]:
    """Inside, processes that grade are forked from a server that has imported what they need. They
    are what they are otherwise, but for the start of Python, which is half of a short run; the
    tests of graders have that too.
    """
    with _copied(GRADER):
        yield


@contextmanager
def _copied(module: str) -> Iterator[None]:
    plain = subprocess.Popen

    def begin(words: Any, *more: Any, **given: Any) -> Any:
        return (Copied if words[-1] == module else plain)(words, *more, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", begin)
        yield
