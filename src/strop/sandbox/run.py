"""Runs untrusted Python code in a process with limits and without the network.

`child.py` describes what the code can and cannot reach, `judge.py` how it is tested;
docs/REWARDS.md describes both for users.
"""

import marshal
import os
import selectors
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from strop.sandbox.plan import plan_of
from strop.support import processes
from strop.support.errors import UserError
from strop.support.exits import Exit

OUTPUT_BYTES = 1 << 20  # of each stream; a program that prints more is ended
_SHARED_LIBRARIES = ("/lib", "/lib64", "/lib32", "/usr/lib", "/usr/lib64", "/usr/lib32")
_PACKAGES = ("site-packages", "dist-packages")
_PROBE_SECONDS = 20.0


@dataclass(frozen=True)
class Limits:
    """The limits of one run. `processes` counts its threads too."""

    wall_seconds: float = 5.0
    cpu_seconds: int = 5
    memory_bytes: int = 512 << 20  # of address space, each process
    disk_bytes: int = 16 << 20  # of each file; isolated, of all files together
    processes: int = 16


class NotRun(RuntimeError):
    """A run that failed for a reason other than the code, with its cause."""

    def __init__(self, why: str, cause: Exit = Exit.START_FAILED) -> None:
        super().__init__(why)
        self.cause = cause


@dataclass(frozen=True)
class Ran:
    """How a run ended: passed is a test's result, or exit code 0 of a program."""

    passed: bool
    output: str
    errors: str
    how: str  # "" when it ended by itself, else the limit that ended it


def run(
    code: str,
    *,
    test: str | None = None,
    stdin: str = "",
    limits: Limits,
    isolate: bool = True,
    packages: bool = False,
) -> Ran:
    """Run code as a program on `stdin`, or run `test` on the module that it makes.

    A test passes when it runs to its end without an exception, in a process that the code cannot
    reach. `packages`: the packages of this interpreter can be imported. Raises NotRun when the
    sandbox cannot be set up (no code has run then).
    """
    shown = _packages() if packages else []
    payload = {
        "code": code.encode("utf-8", "replace").decode(), "tested": test is not None,
        "isolate": isolate, "limits": asdict(limits), "libraries": _libraries(),
        "hidden": _hidden(), "packages": shown,
    }  # fmt: skip
    scratch: Path | None = None
    try:
        scratch = Path(tempfile.mkdtemp(prefix="strop-code-"))
        program = _program(tested=test is not None)
        scratch.joinpath("payload").write_bytes(marshal.dumps((program, payload)))
        if test is not None:
            scratch.joinpath("test").write_bytes(marshal.dumps(plan_of(test)))
        scratch.joinpath("stdin").write_bytes(stdin.encode("utf-8", "replace"))
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} if packages else {}
        status, code_, streams, how = _watched(scratch, limits.wall_seconds, environment)
    except OSError as error:  # a full disk, or no process or descriptor left
        raise NotRun(f"the sandbox could not be set up: {error}") from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
    if not status.startswith(b"ok") and not how:
        reason = status.decode("utf-8", "replace") or streams[1].decode("utf-8", "replace")[-300:]
        raise NotRun(f"the sandbox could not be set up: {reason or 'it ended at once'}")
    output, errors = (stream.decode("utf-8", "replace") for stream in streams)
    passed = code_ == 0 if test is None else status == b"ok passed"
    return Ran(passed and not how, output, errors, how)


def check_isolation() -> None:
    """Raise UserError when this machine cannot isolate code from the network and the files."""
    if sys.platform != "linux":
        raise UserError("model-written code is run on Linux only: run strop there")
    try:
        ran = run("", test="", limits=Limits(wall_seconds=_PROBE_SECONDS))
    except NotRun as error:
        raise UserError(
            f"model-written code cannot be isolated here ({error}): allow unprivileged user "
            "namespaces, or run inside a container of your own and give the reward the option "
            "without_isolation=true"
        ) from error
    if not ran.passed:
        raise UserError(f"the code sandbox does not work here: {ran.how or ran.errors[-300:]}")


def _watched(
    scratch: Path, wall_seconds: float, environment: dict[str, str]
) -> tuple[bytes, int, tuple[bytes, bytes], str]:
    """Status line, exit code, output and error streams, and the limit that ended the run."""
    with ExitStack() as opened:
        stdin = opened.enter_context(scratch.joinpath("stdin").open("rb"))
        ours, theirs = os.pipe()
        status = opened.enter_context(os.fdopen(ours, "rb"))
        try:
            process = processes.start(
                [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", _LAUNCH,
                 str(scratch), str(theirs)],
                stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/",
                env=environment, pass_fds=(theirs,),
            )  # fmt: skip
        finally:
            os.close(theirs)
        try:
            streams, how = _collected(process, wall_seconds)
        finally:
            processes.end(process)
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                stream.close()
        return status.read(1000), process.returncode, streams, how


# The status pipe gets the descriptor that the child expects; nothing else is inherited. The
# program's modules are passed compiled: compiling them again would cost a third of a start.
_LAUNCH = """
import marshal, os, sys
scratch, fd = sys.argv[1], int(sys.argv[2])
fd == 3 or (os.dup2(fd, 3), os.close(fd))
with open(scratch + "/payload", "rb") as file:
    program, payload = marshal.load(file)
for name, code in program:
    module = sys.modules[name] = type(sys)(name)
    exec(code, vars(module))
module.main(scratch, payload)
"""


@cache
def _program(tested: bool) -> list[tuple[str, Any]]:
    """The modules that run inside, compiled, in the order of their dependencies."""
    names = ("wire", "answer", "proxy", "judge", "child") if tested else ("child",)
    paths = [Path(__file__).with_name(f"{name}.py") for name in names]
    return [
        (f"strop.sandbox.{path.stem}", compile(path.read_text("utf-8"), str(path), "exec"))
        for path in paths
    ]


def _collected(
    process: "subprocess.Popen[bytes]", wall_seconds: float
) -> tuple[tuple[bytes, bytes], str]:
    """Read both streams until they close, too much is printed or the time is over."""
    deadline = time.monotonic() + wall_seconds
    kept: dict[Any, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    how = ""
    with selectors.DefaultSelector() as selector:
        for stream in kept:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and not how:
            left = deadline - time.monotonic()
            if left <= 0:
                how = f"over {wall_seconds:g} s"
            for key, _ in selector.select(max(left, 0)):
                piece = os.read(key.fd, 1 << 16)
                if not piece:
                    selector.unregister(key.fileobj)
                kept[key.fileobj] += piece
                if len(kept[key.fileobj]) > OUTPUT_BYTES:
                    how = f"printed over {OUTPUT_BYTES} bytes"
    if not how:
        try:
            process.wait(max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            how = f"over {wall_seconds:g} s"
    return (bytes(kept[process.stdout]), bytes(kept[process.stderr])), how


def _libraries() -> list[str]:
    """Folders that Python code needs: the standard library and the system's shared libraries."""
    standard = os.path.realpath(sysconfig.get_path("stdlib"))
    shared = [folder for folder in _SHARED_LIBRARIES if os.path.isdir(folder)]
    inside = any(standard.startswith(folder + "/") for folder in shared)
    own = os.path.join(sys.base_prefix, "lib")
    extra = [] if inside else [standard]
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and own not in (*shared, *extra):
        extra = [os.path.realpath(own)]
    return [*shared, *extra]


def _packages() -> list[str]:
    """Folders of the packages that are installed for this interpreter."""
    found = [os.path.realpath(path) for path in sys.path if os.path.basename(path) in _PACKAGES]
    return [path for path in dict.fromkeys(found) if os.path.isdir(path)]


@cache
def _hidden() -> list[str]:
    """Folders of packages within the libraries."""
    roots = [Path(os.path.realpath(folder)) for folder in _libraries()]
    found = {
        folder.resolve()
        for root in roots
        for name in _PACKAGES
        for pattern in (name, f"python3*/{name}")
        for folder in root.glob(pattern)
    }
    return sorted(str(folder) for folder in found if set(folder.parents) & set(roots))
