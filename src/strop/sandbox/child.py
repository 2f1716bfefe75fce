"""The program that runs a model's code: it isolates itself, then runs the code.

It is started with `python -I -S`, so it uses the standard library alone. Its payload has limits,
`isolate`, `libraries` (folders that the code may read), `hidden` (folders in them that it may not),
`packages` (folders that it may import from) and `code`. As a program the code reads standard input.
Where it is `tested`, the test is in a file that a separate process reads, after the code's process
has been split off (`judge.py`).

If isolated, the code runs in namespaces of its own: no network, no other processes, and a root
folder with the standard library and the system's shared libraries, read-only, and one folder in
memory that it may write. The process of the test is outside of the code's process namespace.
"""

from __future__ import annotations

import builtins
import ctypes
import marshal
import os
import resource
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing it costs a tenth of a sandbox's start
    from types import ModuleType
    from typing import Any, NoReturn

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND = 1, 2, 4, 32, 4096
MS_REC, MS_PRIVATE = 16384, 1 << 18
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
CAPABILITY_VERSION = 0x20080522
# "ok" is written here once the sandbox is set up, "passed" by the process of a test; it is closed
# before the code runs.
STATUS_FD = 3
NOBODY = 65534
DEVICES = ("null", "zero", "urandom")


def main(scratch: str, payload: dict[str, Any]) -> None:
    """Isolate this process and run the payload; returns when a program has ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    _end_with_parent(libc, os.getppid())
    # Opened and not read: the code's process must not start with the test in its memory.
    test_fd = os.open(f"{scratch}/test", os.O_RDONLY) if payload["tested"] else -1
    for name in os.listdir(scratch):
        os.unlink(f"{scratch}/{name}")
    try:
        if payload["isolate"]:
            _isolate(libc, scratch, payload)
        else:
            os.chdir(scratch)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        ends = _split(libc, payload, test_fd) if payload["tested"] else None
        if payload["isolate"]:
            _fork_and_follow(libc)  # signals do not act on the first process of a namespace
        _limit(payload["limits"])
    except OSError as error:
        os.write(STATUS_FD, f"{error.strerror} ({error.filename})".encode())
        os._exit(1)
    os.write(STATUS_FD, b"ok")
    if ends is None:
        os.closerange(STATUS_FD, 256)
        module = _prepare("__main__", payload["packages"])
        compiled = compile(payload["code"], "answer.py", "exec", dont_inherit=True)
        exec(compiled, vars(module))
        return
    from strop.sandbox.answer import Served
    from strop.sandbox.wire import Channel

    for target, end in zip((STATUS_FD, STATUS_FD + 1), ends, strict=True):
        os.dup2(end, target)
    os.closerange(STATUS_FD + 2, 256)  # the test among them, unread
    channel = Channel(STATUS_FD, STATUS_FD + 1)
    Served(payload["code"], _prepare("answer", payload["packages"]), channel).run()


def _split(libc: ctypes.CDLL, payload: dict[str, Any], test_fd: int) -> tuple[int, int]:
    """Continue as the code's process, with the ends of its channel; the parent runs the test."""
    to_answer, to_test = os.pipe(), os.pipe()
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # no process may read its memory
    child = _fork(libc)
    if child != 0:
        os.close(to_answer[0])
        os.close(to_test[1])
        _limit(payload["limits"])
        _judge(payload, (to_test[0], to_answer[1]), test_fd, child)
    return to_answer[0], to_test[1]


def _judge(payload: dict[str, Any], channel: tuple[int, int], test_fd: int, child: int) -> NoReturn:
    """Run the test and report its result."""
    from strop.sandbox.judge import Link, judge
    from strop.sandbox.wire import Channel

    def end() -> None:
        sys.stdout.flush()
        os.kill(child, signal.SIGKILL)

    sys.path += payload["packages"]
    link = Link(Channel(*channel), end)
    passed = False
    try:
        link.ask("load")
        with open(test_fd, "rb") as file:
            plan = marshal.load(file)
        passed = judge(plan, link)
    except BaseException:
        sys.__excepthook__(*sys.exc_info())
    end()
    if passed:
        os.write(STATUS_FD, b" passed")
    os._exit(0)


def _end_with_parent(libc: ctypes.CDLL, parent: int) -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _called(libc: ctypes.CDLL, name: str, *arguments: object) -> None:
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)


def _isolate(libc: ctypes.CDLL, scratch: str, payload: dict[str, Any]) -> None:
    """Enter namespaces with a root folder of their own, and drop all privileges."""
    if os.getuid() == 0:  # the real user's processes are counted, and root's never are
        os.setresuid(NOBODY, 0, 0)
    user, group = os.geteuid(), os.getegid()
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC
    _called(libc, "unshare", flags)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # new credentials may have cleared it
    for name, text in (
        ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")
    ):  # fmt: skip
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    _fork_and_follow(libc)  # the child is the first process of the namespace: all end with it
    size = payload["limits"]["disk_bytes"]
    _mount(libc, "none", "/", "", MS_REC | MS_PRIVATE)
    _mount(libc, "tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NODEV, f"size={size},mode=755")
    for folder in payload["libraries"]:
        _show(libc, folder, scratch)
    for folder in payload["hidden"]:
        _mount(libc, "tmpfs", scratch + folder, "tmpfs", MS_RDONLY, "size=4k,mode=755")
    for number, folder in enumerate(payload["packages"]):
        _show(libc, folder, scratch, f"/packages/{number}")
        payload["packages"][number] = f"/packages/{number}"
    os.mkdir(scratch + "/dev")
    for device in DEVICES:
        open(f"{scratch}/dev/{device}", "w").close()
        _mount(libc, f"/dev/{device}", f"{scratch}/dev/{device}", "", MS_BIND)
    for folder in ("tmp", "work"):
        os.mkdir(f"{scratch}/{folder}")
    _mount(libc, "tmpfs", scratch + "/work", "tmpfs", MS_NOSUID | MS_NODEV, f"size={size}")
    _mount(libc, scratch + "/work", scratch + "/tmp", "", MS_BIND)
    _mount(libc, "none", scratch, "", MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
    if payload["tested"]:
        _called(libc, "unshare", CLONE_NEWPID)  # the code's process cannot even see the test's
    os.chroot(scratch)
    os.chdir("/work")
    _drop_capabilities(libc)


def _fork(libc: ctypes.CDLL) -> int:
    """Fork a process that ends with this one; returns its number, and 0 within it."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        # Inside a new process namespace the first parent has no number.
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() not in (parent, 0):
            os._exit(1)
    return child


def _fork_and_follow(libc: ctypes.CDLL) -> None:
    """Continue in a child; the parent waits for it and ends in the same way."""
    child = _fork(libc)
    if child == 0:
        return
    os.closerange(STATUS_FD, 256)
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _show(libc: ctypes.CDLL, folder: str, root: str, name: str = "") -> None:
    """Make a folder of the machine readable under the new root, or copy its link."""
    target = root + (name or folder)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(folder):
        os.symlink(os.readlink(folder), target)
        return
    os.mkdir(target)
    _mount(libc, folder, target, "", MS_BIND)
    kept = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | os.ST_NOEXEC)
    _mount(libc, "none", target, "", MS_BIND | MS_REMOUNT | MS_RDONLY | kept)


def _mount(
    libc: ctypes.CDLL, source: str, target: str, kind: str, flags: int, options: str = ""
) -> None:
    arguments = (source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags))
    try:
        _called(libc, "mount", *arguments, options.encode() or None)
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"mounting {target}") from error


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    _called(libc, "capset", header, (ctypes.c_uint32 * 6)())


def _limit(limits: dict[str, int]) -> None:
    for name, value in (
        ("RLIMIT_CPU", limits["cpu_seconds"]),
        ("RLIMIT_AS", limits["memory_bytes"]),
        ("RLIMIT_FSIZE", limits["disk_bytes"]),
        ("RLIMIT_NPROC", limits["processes"]),
        ("RLIMIT_NOFILE", 64),
        ("RLIMIT_CORE", 0),
    ):
        resource.setrlimit(getattr(resource, name), (value, value))


def _prepare(name: str, packages: list[str]) -> ModuleType:
    """Make the empty module for the code, and set up the interpreter as programs expect it."""
    module = sys.modules[name] = type(sys)(name)
    sys.argv = ["answer.py"]
    sys.path.insert(0, "")
    sys.path += packages
    # Programs expect these functions of the site module, which -S leaves out.
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    return module
