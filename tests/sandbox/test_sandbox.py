"""Code that tries to break out of the sandbox, to use too much, or to pass without being right."""

import os
import resource
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from strop.sandbox import run as sandbox
from strop.sandbox.run import OUTPUT_BYTES, Limits, Ran, run
from strop.support.exits import Exit

SHORT = Limits(wall_seconds=20.0, cpu_seconds=5, memory_bytes=256 << 20, disk_bytes=4 << 20)


def program(code: str, **options: object) -> Ran:
    return run(code, **{"limits": SHORT, **options})


def processes_with(text: str) -> list[str]:
    """Command lines of running processes that hold the text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        found += [line] if text in line else []
    return found


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path, monkeypatch):
    """Scratch folders lie here; afterwards neither they nor processes are left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield
    assert not list(tmp_path.glob("strop-code-*"))
    deadline = time.monotonic() + 5.0  # the kernel ends those of a namespace one after another
    while processes_with(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not processes_with(str(tmp_path))


def test_a_program_reads_and_prints():
    ran = program("print(sum(map(int, input().split())))", stdin="3 4\n")
    assert (ran.passed, ran.output, ran.how) == (True, "7\n", "")
    failing = program("import sys; print('x'); sys.exit(3)")
    assert (failing.passed, failing.output) == (False, "x\n")
    assert program("print('é')\nexit()").output == "é\n"


def test_a_test_runs_in_the_module_of_the_code():
    code = "import heapq, json, decimal\ndef f(x):\n    return 2 * x\n"
    assert program(code, test="assert f(2) == 4").passed
    wrong = program(code, test="assert f(2) == 5")
    assert not wrong.passed
    assert "AssertionError" in wrong.errors
    assert not program("if True print()", test="assert True").passed
    guarded = "def f():\n    return 1\nif __name__ == '__main__':\n    raise SystemExit(1)\n"
    assert program(guarded, test="assert f() == 1").passed


@pytest.mark.parametrize("leave", ["sys.exit(0)", "os._exit(0)", "exit()", "raise SystemExit"])
def test_leaving_early_passes_no_test(leave):
    assert not program(f"import os, sys\n{leave}", test="assert False").passed
    inside = f"import os, sys\ndef f():\n    {leave}"
    assert not program(inside, test="assert f() == 1").passed


def test_an_infinite_loop_ends_by_wall_or_processor_time():
    started = time.monotonic()
    slept = program("import time; time.sleep(60)", limits=Limits(wall_seconds=0.5))
    assert slept.how == "over 0.5 s"
    assert time.monotonic() - started < 10
    busy = program("while True: pass", limits=Limits(wall_seconds=30, cpu_seconds=1))
    assert (busy.passed, busy.how) == (False, "")
    closed = "import os, time\nos.close(1)\nos.close(2)\ntime.sleep(60)"
    assert program(closed, limits=Limits(wall_seconds=0.5)).how == "over 0.5 s"


def test_a_fork_bomb_is_bounded_and_ends_with_its_parent():
    ran = program("""
import os, time
born = 0
try:
    for _ in range(200):
        if os.fork() == 0:
            os.setsid()
            time.sleep(300)
        born += 1
except OSError:
    pass
print(born)
""")  # fmt: skip
    assert 0 < int(ran.output) <= SHORT.processes


def test_memory_files_and_output_are_bounded():
    assert "MemoryError" in program("x = bytearray(1 << 30)").errors
    one = program("open('big', 'wb').write(b'a' * (8 << 20))")
    assert "OSError" in one.errors
    many = program("for i in range(64):\n    open(str(i), 'wb').write(b'a' * (1 << 20))")
    assert "No space left" in many.errors
    for stream in ("stdout", "stderr"):
        flood = program(f"import sys\nwhile True:\n    sys.{stream}.write('x' * 65536)")
        assert flood.how == f"printed over {OUTPUT_BYTES} bytes"
        assert len(flood.output) + len(flood.errors) < 3 * OUTPUT_BYTES


def test_no_network_reaches_a_local_server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        code = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 3)\n"
        assert "unreachable" in program(code).errors
        with pytest.raises(TimeoutError):
            server.accept()
        # The same code does connect where isolation is left out on purpose.
        assert program(code, isolate=False).passed


def test_secrets_of_the_environment_are_not_there(monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "s3cret")
    ran = program("import os; print(dict(os.environ)); print(os.listdir('/'))")
    assert "s3cret" not in ran.output
    assert "proc" not in ran.output  # so no other process's environment either
    assert "s3cret" not in program("import os; print(dict(os.environ))", isolate=False).output


def test_files_of_the_machine_cannot_be_read_or_written(tmp_path):
    private = tmp_path / "private.txt"
    private.write_text("mine")
    assert "FileNotFoundError" in program(f"print(open({str(private)!r}).read())").errors
    assert "FileNotFoundError" in program("print(open('/etc/passwd').read())").errors
    for place in ("/new", "/usr/new", f"{os.path.dirname(os.__file__)}/new.py"):
        assert "Read-only file system" in program(f"open({place!r}, 'w')").errors
    for place in ("../x", "/../x", "/work/../../x"):
        assert "Read-only file system" in program(f"open({place!r}, 'w')").errors
    assert program("open('a', 'w').write('x'); open('/tmp/b', 'w').write('y')").passed
    assert private.read_text() == "mine"


def test_privileges_cannot_be_won_back():
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.unshare(0x10000000), libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
for call in (lambda: os.chroot("/tmp"), lambda: os.mknod("/tmp/d", 0o60644, 0x800)):
    try:
        call()
        print("allowed")
    except OSError:
        print("refused")
"""
    assert program(code).output.split() == ["-1", "-1", "refused", "refused"]


def test_no_file_of_the_parent_stays_open(tmp_path):
    code = """
import os
for fd in range(64):
    try:
        os.fstat(fd)
        print(fd)
    except OSError:
        pass
"""
    with (tmp_path / "held").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        for isolate in (True, False):
            assert program(code, isolate=isolate).output.split() == ["0", "1", "2"]


def test_code_ends_with_the_process_that_asked_for_it(tmp_path):
    asks = (
        "import sys, tempfile\nfrom strop.sandbox.run import Limits, run\n"
        "tempfile.tempdir = sys.argv[1]\n"
        "run('import time; time.sleep(300)', limits=Limits(wall_seconds=300))\n"
    )
    with subprocess.Popen([sys.executable, "-c", asks, str(tmp_path)]) as asker:
        deadline = time.monotonic() + 20
        while len(processes_with(f"{tmp_path}/strop-code")) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        asker.kill()
    deadline = time.monotonic() + 5
    while processes_with(f"{tmp_path}/strop-code") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not processes_with(f"{tmp_path}/strop-code")
    for left in tmp_path.glob("strop-code-*"):  # the killed process could not
        for path in left.iterdir():
            path.unlink()
        left.rmdir()


# In a user namespace that allows no further one, as on machines where they are switched off.
WITHOUT = (
    "echo 0 > /proc/sys/user/max_user_namespaces && exec {python} -c '"
    "from strop.rewards.code import RunTests\n"
    "from strop.support.errors import UserError\n"
    "try:\n    RunTests()\nexcept UserError as error:\n    print(error)\n"
    'print(RunTests(without_isolation=True)(["x = 1"], lambda *_: None, [["assert x == 1"]]))\''
)


def test_without_namespaces_code_is_refused_unless_allowed():
    ran = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", WITHOUT.format(python=sys.executable)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    refusal, allowed = ran.stdout.splitlines()
    assert "cannot be isolated here" in refusal
    assert "without_isolation=true" in refusal
    assert allowed == "[1.0]"


def test_without_isolation_the_limits_still_hold():
    def loose(code: str, **options: object) -> Ran:
        return program(code, isolate=False, **options)

    assert loose("import time; time.sleep(60)", limits=Limits(wall_seconds=0.5)).how == "over 0.5 s"
    assert "MemoryError" in loose("x = bytearray(1 << 30)").errors
    assert "OSError" in loose("open('big', 'wb').write(b'a' * (8 << 20))").errors
    assert "printed over" in loose("while True: print('x' * 65536)").how
    assert not loose("", test="assert False").passed


def test_a_sandbox_that_cannot_be_set_up_runs_nothing(monkeypatch):
    monkeypatch.setattr(sandbox, "_libraries", lambda: ["/no/such/folder"])
    with pytest.raises(RuntimeError, match=r"could not be set up: .*no/such/folder"):
        program("print('ran')")


@pytest.fixture
def two_free_descriptors():
    """The process may open two more files."""
    program("")  # what it imports and caches is there
    taken = [os.open(os.devnull, os.O_RDONLY)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 64, limits[1]))
    with suppress(OSError):
        while True:
            taken.append(os.dup(taken[0]))
    for _ in range(2):
        os.close(taken.pop())
    yield
    for number in taken:
        os.close(number)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_run_without_descriptors_keeps_none_of_those_that_it_had(two_free_descriptors):
    for _ in range(2):  # those that one keeps are missing in the next
        with pytest.raises(sandbox.NotRun, match="Too many open files"):
            program("", isolate=False)
        os.close(os.open(os.devnull, os.O_RDONLY))


def test_a_full_disk_is_no_fault_of_the_code(monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sandbox.tempfile, "mkdtemp", full)
    with pytest.raises(sandbox.NotRun, match=r"could not be set up: .*No space left") as caught:
        program("print('ran')")
    assert caught.value.cause is Exit.START_FAILED


LOOK = """
import glob, importlib.util, os, sys
known = [path for name in ("site-packages", "dist-packages") for root in PLACES
         for path in glob.glob(f"{root}/{name}/*") + glob.glob(f"{root}/python3*/{name}/*")]
sys.path += [os.path.dirname(path) for path in known]
print(len(known), importlib.util.find_spec("numpy") is not None)
"""


def test_installed_packages_are_there_only_if_asked_for():
    places = [os.path.dirname(os.__file__), "/usr/lib", "/lib", f"{sys.prefix}/lib"]
    look = f"PLACES = {places!r}\n{LOOK}"
    assert program(look).output.split() == ["0", "False"]
    roomy = Limits(wall_seconds=60.0, cpu_seconds=30, memory_bytes=2 << 30)
    shown = program(look, packages=True, limits=roomy).output.split()
    assert shown == ["0", "True"]  # not where they are on the machine


def test_arrays_are_compared_as_data():
    roomy = Limits(wall_seconds=60.0, cpu_seconds=30, memory_bytes=2 << 30)
    code = """
import numpy as np
class Equal:
    __array_interface__ = {"shape": (2,), "typestr": "<f8", "version": 3, "data": (8, False)}
    __eq__ = lambda self, other: np.array([True, True])
def double(x):
    return 2 * np.asarray(x)
def total(x):
    return np.sum(x)
def cheat(x):
    return Equal()
"""
    test = """
assert np.allclose(double([1.0, 2.5]), [2.0, 5.0])
assert double([[1], [2]]).shape == (2, 1) and double([1, 2]).dtype == np.int64
assert (double(np.arange(3)) == np.array([0, 2, 4])).all()
assert total([1, 2]) == 3 and isinstance(total([1.5]), np.floating)
"""
    assert program(code, test=test, packages=True, limits=roomy).passed
    for wrong in ("np.allclose(cheat(1), [2.0, 2.0])", "(cheat(1) == np.array([2, 2])).all()"):
        assert not program(code, test=f"assert {wrong}", packages=True, limits=roomy).passed
    assert "No module named 'numpy'" in program("import numpy").errors


def test_a_test_is_told_apart_from_the_answer_it_tests():
    # What the answer prints when called is printed by the test; its own names stay its own.
    ran = program("def f():\n    print('called')\n", test="f()\nprint('after')\nassert True")
    assert (ran.passed, ran.output) == (True, "called\nafter\n")
    for test in ("f(", "assert g() == 1", "f().x", "import nothing_of_the_kind", "1 / 0"):
        assert not program("def f(): pass", test=test).passed
    assert not program("x = 1", test="while True: pass", limits=Limits(wall_seconds=0.5)).passed


SCAN = """
import re
def f(where="self"):
    wanted = re.compile(b"zq" + b"7-[a-z]+")
    with open(f"/proc/{where}/maps") as maps, open(f"/proc/{where}/mem", "rb", 0) as memory:
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if " rw" not in line or end - start > 1 << 28:
                continue
            memory.seek(start)
            found = wanted.search(memory.read(end - start))
            if found:
                return found[0].decode()
"""


def test_the_test_is_not_in_the_memory_of_the_code():
    # Without isolation, for there is no /proc to look into otherwise.
    for inside in ("", "import sys\nsys.setrecursionlimit(999)\n"):
        ran = program(SCAN, test=inside + "assert f() == 'zq7-hidden'", isolate=False)
        assert not ran.passed
        # Whether the memory can be opened, or read, depends on the user and the system.
        last = ran.errors.strip().splitlines()[-1]
        assert last == "AssertionError" or "Permission denied" in last
    # The scan does find what is there, where the system lets a process look.
    there = program(
        f"{SCAN}kept = 'zq7-' + 'own'.lower()", test="assert f() == 'zq7-own'", isolate=False
    )
    assert there.passed or "Permission denied" in there.errors


def test_a_program_is_compiled_without_the_sandboxs_own_future():
    code = "def f(x: int): pass\nprint(f.__annotations__['x'] is int)"
    assert run(code, limits=Limits()).output == "True\n"
