"""The program that runs a model's code: it locks itself in, then runs the code.

Started as `python -I -S sandbox_child.py PAYLOAD`, so it uses the standard library alone. PAYLOAD
is a JSON file: limits, `isolate`, `libraries` (folders that the code may read), `code`, and either
`test` with the `token` that is printed when the test passes, or none, for a program that reads
standard input.

Isolated, the code lives in namespaces of its own: no network, no other processes, and a root folder
that holds the standard library and the system's shared libraries, read-only, and one folder in
memory that it may write.
"""

import builtins
import ctypes
import json
import os
import resource
import signal
import sys
import types

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND = 1, 2, 4, 32, 4096
MS_REC, MS_PRIVATE = 16384, 1 << 18
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
CAPABILITY_VERSION = 0x20080522
STATUS_FD = 3  # "ok" is written here once the locks hold; closed before the code runs
NOBODY = 65534
DEVICES = ("null", "zero", "urandom")


def main() -> None:
    """Lock this process in and run the payload; never returns."""
    libc = ctypes.CDLL(None, use_errno=True)
    _end_with_parent(libc, os.getppid())
    with open(sys.argv[1], encoding="utf-8") as file:
        payload = json.load(file)
    os.unlink(sys.argv[1])  # it holds the test
    scratch = os.path.dirname(os.path.abspath(sys.argv[1]))
    try:
        if payload["isolate"]:
            _isolate(libc, scratch, payload)
        else:
            os.chdir(scratch)
        _limit(payload["limits"])
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    except OSError as error:
        os.write(STATUS_FD, f"{error.strerror} ({error.filename})".encode())
        os._exit(1)
    os.write(STATUS_FD, b"ok")
    os.closerange(STATUS_FD, 256)
    _run(payload)


def _end_with_parent(libc: ctypes.CDLL, parent: int) -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _called(libc: ctypes.CDLL, name: str, *arguments: object) -> None:
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)


def _isolate(libc: ctypes.CDLL, scratch: str, payload: dict) -> None:
    """Namespaces, a root folder of our own, and no privilege left inside them."""
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
    _fork_and_follow(libc)  # the first process of the namespace: all end with it
    _fork_and_follow(libc)  # signals act on any but the first
    size = payload["limits"]["disk_bytes"]
    _mount(libc, "none", "/", "", MS_REC | MS_PRIVATE)
    _mount(libc, "tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NODEV, f"size={size},mode=755")
    for folder in payload["libraries"]:
        _show(libc, folder, scratch)
    os.mkdir(scratch + "/dev")
    for device in DEVICES:
        open(f"{scratch}/dev/{device}", "w").close()
        _mount(libc, f"/dev/{device}", f"{scratch}/dev/{device}", "", MS_BIND)
    for folder in ("tmp", "work"):
        os.mkdir(f"{scratch}/{folder}")
    _mount(libc, "tmpfs", scratch + "/work", "tmpfs", MS_NOSUID | MS_NODEV, f"size={size}")
    _mount(libc, scratch + "/work", scratch + "/tmp", "", MS_BIND)
    _mount(libc, "none", scratch, "", MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chroot(scratch)
    os.chdir("/work")
    _drop_capabilities(libc)


def _fork_and_follow(libc: ctypes.CDLL) -> None:
    """Go on in a child; the parent waits for it and ends as it does."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        # Inside a new process namespace the first parent has no number.
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() not in (parent, 0):
            os._exit(1)
        return
    os.closerange(STATUS_FD, 256)
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _show(libc: ctypes.CDLL, folder: str, root: str) -> None:
    """Make a folder of the machine readable under the new root, or repeat its link."""
    target = root + folder
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


def _limit(limits: dict) -> None:
    for name, value in (
        ("RLIMIT_CPU", limits["cpu_seconds"]),
        ("RLIMIT_AS", limits["memory_bytes"]),
        ("RLIMIT_FSIZE", limits["disk_bytes"]),
        ("RLIMIT_NPROC", limits["processes"]),
        ("RLIMIT_NOFILE", 64),
        ("RLIMIT_CORE", 0),
    ):
        resource.setrlimit(getattr(resource, name), (value, value))


def _run(payload: dict) -> None:
    """The code as a program, or as a module that a test then looks at."""
    test = payload.get("test")
    name = "__main__" if test is None else "answer"
    module = types.ModuleType(name)
    sys.modules[name] = module
    sys.argv = ["answer.py"]
    sys.path.insert(0, "")
    # Programs expect them, and they come with the site module that -S leaves out.
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    exec(compile(payload["code"], "answer.py", "exec"), vars(module))
    if test is not None:
        exec(compile(test, "test.py", "exec"), vars(module))
        sys.stdout.flush()
        os.write(1, payload["token"].encode())
        os._exit(0)


if __name__ == "__main__":
    main()
