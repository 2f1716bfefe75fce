"""Several processes that use one folder, and several that look for a free one."""

import errno
import fcntl
import os
import re
import subprocess
import sys
import time
from multiprocessing import get_context

import pytest
from commands import launch
from models import without_times

from strop.support.errors import UserError
from strop.training.record.lock import Lock, in_use

SLOW = """
import time

def slow(completions, **columns):
    time.sleep(0.5 * any(completions))
    return [float(len(text)) for text in completions]
"""


def waited_for(condition, process):
    end = time.monotonic() + 60
    while not condition():
        assert process.is_alive()
        assert time.monotonic() < end
        time.sleep(0.005)


def output_of(process, path):
    process.join()
    return process.exitcode, path.read_text() if path.exists() else ""


def test_a_run_in_progress_is_left_alone_and_a_killed_one_is_taken_over(lab, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    folder = tmp_path / "run"
    words = ["train", *lab.arguments("--out", str(folder))]
    words[words.index("--reward") + 1] = f"{tmp_path}/slow.py:slow"
    first = launch(words, tmp_path / "first")
    waited_for((folder / "metrics.jsonl").exists, first)
    second = launch(["train", "--resume", folder], tmp_path / "second")
    code, said = output_of(second, tmp_path / "second")
    assert code == 2
    assert f"{folder} is in use by process {first.pid} on " in said
    assert first.is_alive()
    first.kill()
    first.join()
    third = launch(["train", "--resume", folder], tmp_path / "third")
    code, said = output_of(third, tmp_path / "third")
    assert code == 0, said
    assert [line["step"] for line in without_times(folder)] == [1, 2, 3]
    assert not (folder / ".lock").exists()


def test_two_that_start_one_folder_at_once(lab, tmp_path):
    folder = tmp_path / "run"
    words = ["train", *lab.arguments("--out", str(folder))]
    both = [launch(words, tmp_path / f"output-{n}") for n in range(2)]
    found = [output_of(process, tmp_path / f"output-{n}") for n, process in enumerate(both)]
    assert sorted(code for code, _ in found) == [0, 2], found
    (refused,) = (said for code, said in found if code == 2)
    assert re.search("is in use by (another )?process|already holds a run", refused)
    assert [line["step"] for line in without_times(folder)] == [1, 2, 3]


def _claims(folder, gate, answers):
    from strop.api.folders import free_folder

    os.chdir(folder)
    gate.wait()
    answers.put([str(free_folder("grpo")) for _ in range(25)])


def test_starts_at_once_each_find_a_number(tmp_path):
    context = get_context("fork")
    gate, answers = context.Barrier(4), context.Queue()
    processes = [context.Process(target=_claims, args=(tmp_path, gate, answers)) for _ in range(4)]
    for process in processes:
        process.start()
    found = [name for _ in processes for name in answers.get(timeout=30)]
    for process in processes:
        process.join()
    assert sorted(found) == sorted(f"runs/grpo-{n}" for n in range(1, 101))


def test_a_lock_file_that_was_left_behind_holds_nobody_up(tmp_path):
    (tmp_path / ".lock").write_text("process 1 on somewhere\n" * 9)
    lock = Lock(tmp_path)
    lock.take()
    assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} on ")
    assert (tmp_path / ".lock").read_text().count("\n") == 1
    lock.free()
    assert not (tmp_path / ".lock").exists()


def test_a_run_stays_locked_when_its_own_process_looks_at_it(tmp_path):
    lock = Lock(tmp_path)
    lock.take()
    assert in_use(tmp_path)  # as a watch in the training process asks
    ask = "import sys; from pathlib import Path; from strop.training.record.lock import in_use; "
    ask += "print(in_use(Path(sys.argv[1])))"
    other = subprocess.run([sys.executable, "-c", ask, tmp_path], capture_output=True, text=True)
    assert other.stdout == "True\n"
    with pytest.raises(UserError, match="is in use by process"):
        Lock(tmp_path).take()
    lock.free()


def test_a_place_without_locks_is_not_said_to_be_in_use(tmp_path, monkeypatch):
    def none(*given):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "fcntl", none)
    with pytest.raises(UserError, match=r"the run could not be written to .*: No locks available"):
        Lock(tmp_path).take()
