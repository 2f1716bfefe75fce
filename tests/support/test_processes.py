"""Child processes: started in sessions of their own, ended with all their children."""

import os
import signal
import subprocess
import sys
import time

import pytest
from commands import lives

from strop.support import processes

# A child that starts another one in a session of its own, prints its id, and continues.
PARENT = """
import signal, subprocess, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"],
                         start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def started(*words):
    command = [sys.executable, "-c", PARENT, *words]
    process = processes.start(command, stdout=subprocess.PIPE)
    return process, int(process.stdout.readline())


def gone(pid):
    end = time.monotonic() + 20
    while lives(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not lives(pid)


def test_a_child_has_a_session_of_its_own_and_no_input():
    code = "import os, sys; print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()))"
    process = processes.start([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.communicate(timeout=60)[0] == b"True ''\n"
    echo = "print(input())"
    process = processes.start(
        [sys.executable, "-c", echo], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.communicate(b"said", timeout=60)[0] == b"said\n"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says who descends from whom")
@pytest.mark.parametrize(("words", "grace_seconds"), [((), 0.0), (("deaf",), 0.2)])
def test_what_a_child_started_ends_with_it(words, grace_seconds):
    process, grandchild = started(*words)
    assert os.getsid(grandchild) != process.pid
    processes.end(process, grace_seconds)
    assert process.returncode == -signal.SIGKILL
    assert gone(grandchild)
    process.stdout.close()
    processes.end(process)  # again


def test_a_child_that_is_told_may_end_by_itself():
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); "
        "print('ready', flush=True); time.sleep(60)"
    )
    process = processes.start([sys.executable, "-c", code], stdout=subprocess.PIPE)
    process.stdout.readline()
    processes.end(process, 30.0)
    assert process.returncode == 7
    process.stdout.close()


def test_the_rest_of_its_group_ends_with_a_child_that_has_ended():
    code = (
        "import subprocess, sys; "
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], "
        "stdout=subprocess.DEVNULL).pid)"
    )
    process = processes.start([sys.executable, "-c", code], stdout=subprocess.PIPE)
    left = int(process.communicate(timeout=60)[0])
    assert lives(left)
    processes.end(process, 30.0)
    assert process.returncode == 0
    assert gone(left)


def test_a_signal_to_a_process_that_is_gone_is_none():
    process = processes.start([sys.executable, "-c", ""])
    process.wait()
    processes.send(process.pid, signal.SIGTERM)


# A trainer that dies between the two signals with which it ends its children.
TRAINER = """
import os, signal, sys
from strop.support import processes
from strop.support.guarded_process import GuardedProcess

guarded = GuardedProcess()
channel = guarded.launch("grading_nothing", output=1)
print(channel.recv(100).decode(), guarded.process.pid, flush=True)
processes.end_descendants = lambda root: os.kill(os.getpid(), signal.SIGKILL)
guarded.end()
"""
WORKER = """
import os, time

def main(channel):
    channel.sendall(str(os.getpid()).encode())
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="its kernel says when a parent dies")
def test_a_trainer_that_is_killed_while_it_ends_a_process_leaves_none(tmp_path):
    (tmp_path / "grading_nothing.py").write_text(WORKER)
    trainer = subprocess.run(
        [sys.executable, "-c", TRAINER], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=False, timeout=60,
    )  # fmt: skip
    assert trainer.returncode == -signal.SIGKILL, trainer.stderr
    assert all(gone(int(pid)) for pid in trainer.stdout.split())
    assert len(trainer.stdout.split()) == 2


@pytest.mark.parametrize(
    ("files", "cores", "memory"),
    [
        ({"cpu.max": "150000 100000\n", "memory.max": "4096\n"}, 2, 4096),
        ({"cpu.max": "max 100000\n", "memory.max": "max\n"}, None, 8192),
        ({"cpu.max": "400000 100000\n"}, None, 8192),  # it sees no more than four
        (
            {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n",
             "memory/memory.limit_in_bytes": "9223372036854771712\n"}, 1, 8192,
        ),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None, 8192),
    ],
)  # fmt: skip
def test_limits_of_a_container(files, cores, memory, tmp_path, monkeypatch):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(processes, "GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 2, "SC_PAGE_SIZE": 4096}.get)
    assert processes.cores_of_container() == cores
    assert processes.num_cores() == (cores or 4)
    assert processes.usable_memory() == memory
