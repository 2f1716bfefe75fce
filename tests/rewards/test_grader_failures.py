"""Rewards that exit, raise or hang: their cost, and how long worker processes live."""

import builtins
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from commands import lives
from grading import grade, grade_once, kinds, spec

from strop.rewards import grader_process, grader_worker
from strop.rewards.grader import Grader
from strop.rewards.grader_process import WorkerProcess
from strop.rewards.source import RewardSpec
from strop.support.exits import Exit

pytestmark = pytest.mark.usefixtures("reward_file")


def wait_until_gone(pid, seconds=5.0):
    deadline = time.monotonic() + seconds
    while lives(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not lives(pid)


def test_rows_that_exit_raise_or_hang_cost_only_themselves():
    texts = ["aa", "exit", "b", "raise", "hang", "ccccc", "signal", "system"]
    grades = grade_once([spec("hostile"), spec("length")], texts, 0.6, 3)
    assert kinds(grades) == [
        (1, "hostile", "crash"),
        (3, "hostile", "exception"),
        (4, "hostile", "timeout"),
        (6, "hostile", "crash"),
        (7, "hostile", "exception"),
    ]
    messages = {f.row: f.message for f in grades.failures}
    assert "exit code 7" in messages[1]
    assert "RuntimeError: bad row: raise" in messages[3]
    assert "rewards.py:25" in messages[3]
    assert "SIGSEGV" in messages[6]
    assert grades.scored_B.tolist() == [True, False, True, False, False, True, False, False]
    # The rest was scored in one call: shares of 2 + 1 + 5 characters.
    assert grades.scores_BM[[0, 2, 5], 0].tolist() == [2 / 8, 1 / 8, 5 / 8]
    assert np.isnan(grades.scores_BM[~grades.scored_B, 0]).all()
    assert grades.scores_BM[:, 1].tolist() == [len(text) for text in texts]


def test_a_hang_that_holds_the_interpreter_lock_ends_too():
    grades = grade_once([spec("backtracks")], ["aa", "a" * 60 + "b", "b"], 0.5)
    assert kinds(grades) == [(1, "backtracks", "timeout")]
    assert grades.scores_BM[[0, 2], 0].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_independent_rows_are_scored_in_pieces_and_keep_what_they_got_alone(num_workers):
    texts = ["a" * (i % 5 + 1) for i in range(150)]
    texts[3], texts[140] = "exit", "raise"
    grades = grade_once([spec("alone", rows_are_independent=True)], texts, 5.0, num_workers)
    assert kinds(grades) == [(3, "alone", "crash"), (140, "alone", "exception")]
    kept = [i for i in range(150) if i not in (3, 140)]
    assert grades.scores_BM[kept, 0].tolist() == [len(texts[i]) + 1.0 for i in kept]


def test_the_eighth_late_row_ends_the_search():
    texts = ["ok", *["hang"] * 9, "ok", "ok"]
    grades = grade_once([spec("hostile")], texts, 0.25, 3)
    assert [f.row for f in grades.failures] == [*range(1, 12)]
    late = [f.row for f in grades.failures if f.cause is Exit.TIMEOUT]
    assert late == list(range(1, 9))
    others = {(f.cause, f.message[:26]) for f in grades.failures if f.row not in late}
    assert others == {(Exit.NOT_TRIED, "not tried: 8 rows before i")}
    assert grades.scores_BM[0, 0] == 1.0


def test_a_failure_of_the_batch_as_a_whole_leaves_it_unscored():
    grades = grade_once([spec("jointly"), spec("length")], ["a", "b", "c"])
    assert kinds(grades) == [(i, "jointly", "reward_bug") for i in range(3)]
    assert (
        "3 rows fail together, each passes alone: ValueError: too many"
        in grades.failures[0].message
    )
    assert grades.scores_BM[:, 1].tolist() == [1.0, 1.0, 1.0]
    assert not grades.scored_B.any()


def test_single_row_failures():
    for text, kind in (
        ("exit", "crash"), ("raise", "exception"), ("mute", "exception"), ("hang", "timeout"),
    ):  # fmt: skip
        grades = grade_once([spec("hostile")], [text], 0.3)
        assert kinds(grades) == [(0, "hostile", kind)]


def test_a_killed_worker_is_replaced():
    with Grader([spec("process")]) as grader:
        first = int(grade(grader, ["a"]).scores_BM[0, 0])
        assert first != os.getpid()
        os.kill(first, signal.SIGKILL)
        assert wait_until_gone(first)
        again = grade(grader, ["a", "b"])
        assert again.failures == ()
        assert len({first, os.getpid(), *again.scores_BM[:, 0]}) == 3
    assert wait_until_gone(int(again.scores_BM[0, 0]))


def test_a_hung_worker_takes_its_children_with_it(tmp_path):
    grades = grade_once([spec("child")], ["hang"], 1.0)
    assert kinds(grades) == [(0, "child", "timeout")]
    assert wait_until_gone(int((tmp_path / "child.pid").read_text()))


def child_of(tmp_path):
    pid = int((tmp_path / "child.pid").read_text())
    assert os.getsid(pid) == pid if lives(pid) else True
    return pid


@pytest.mark.parametrize("text", ["hang", "exit", "fine"])
def test_a_child_in_another_session_ends_with_the_process_that_started_it(tmp_path, text):
    with Grader([spec("far_child")], timeout_seconds=2.0) as grader:
        grades = grade(grader, [text])
        if text == "fine":
            assert lives(child_of(tmp_path))
            assert grades.scored_B.all()
    assert wait_until_gone(child_of(tmp_path))


def framed(content):
    return struct.pack("!Q", len(content)) + content


@pytest.mark.parametrize(
    "message",
    [
        framed(b"\xff\xfe"),
        framed(b"[1, 2]"),
        framed(b"[" * 50_000),
        framed(b'{"number": 0, "scores": [1.0, 1.0]}'),
        framed(b'{"number": 2, "imports": true}') + framed(b'{"number": 2, "scores": "ab"}'),
        framed(b'{"number": 2, "scores": [1.0, 2.0], "unscored": {}, "metrics": {}, "extra": {}}'),
    ],
)
def test_what_is_no_reply_costs_its_rows(message):
    # request 1 loads, request 2 is the call that writes
    with Grader([spec("writes_to_files", rows_are_independent=True)], 2.0) as grader:
        grades = grade(grader, [f"write {message!r}"])
        assert kinds(grades) == [(0, "writes_to_files", "crash")]
        assert "sent something that is no reply" in grades.failures[0].message
        assert grade(grader, ["a", "b"]).scores_BM[:, 0].tolist() == [1.0, 1.0]


def test_a_message_without_an_end_is_late():
    with Grader([spec("writes_to_files")], 0.5) as grader:
        grades = grade(grader, ["write " + repr(struct.pack("!Q", 1 << 60))])
        assert kinds(grades) == [(0, "writes_to_files", "timeout")]


@pytest.mark.parametrize("text", ["deep", "keys"])
def test_what_cannot_be_written_as_json_costs_its_rows(text):
    grades = grade_once([spec("logs_what_is_no_json"), spec("length")], [text])
    assert kinds(grades) == [(0, "logs_what_is_no_json", "exception")]
    assert "what the reward logged cannot be written" in grades.failures[0].message
    assert grades.scores_BM[0, 1] == len(text)


def test_what_a_call_imports_does_not_count_as_its_time(tmp_path):
    (tmp_path / "slow_to_import.py").write_text(
        "import time, deeper\ntime.sleep(0.7)\nVALUE = deeper.VALUE\n"
    )
    (tmp_path / "deeper.py").write_text("import time\ntime.sleep(0.7)\nVALUE = 3.0\n")
    with Grader([spec("imports")], timeout_seconds=0.6) as grader:
        assert grade(grader, ["a", "b"]).scores_BM[:, 0].tolist() == [3.0, 3.0]
        late = grade(grader, ["hang"])  # ends its process
        assert kinds(late) == [(0, "imports", "timeout")]
        assert late.seconds < 1.5
        assert grade(grader, ["a"]).scores_BM[0, 0] == 3.0  # imported anew


def test_imports_have_a_limit_of_their_own(tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(60)\n")
    with Grader([spec("imports")], timeout_seconds=0.3) as grader:
        monkeypatch.setattr(grader_process, "START_SECONDS", 0.9)
        late = grade(grader, ["a"])
    assert kinds(late) == [(0, "imports", "timeout")]
    assert 0.8 < late.seconds < 2.5


PARENT = """
import sys
from strop.rewards.grader import Grader
from strop.rewards.grader_process import WorkerProcess
from strop.rewards.source import RewardSpec
from strop.rewards.source import RewardSpec
names = ("process", "far_child", "hostile")
specs = [RewardSpec(name, f"rewards.py:{name}") for name in names]
with Grader(specs) as grader:
    pid = grader.grade(["p"], ["a"], [[]], {}).scores_BM[0, 0]
    print(int(pid), flush=True)
    grader.grade(["p"], [sys.argv[1]], [[]], {})
    sys.stdin.read()
"""


@pytest.mark.parametrize("text", ["idle", "hang"])
def test_workers_and_what_they_started_end_with_a_killed_parent(tmp_path, text):
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        pid = int(parent.stdout.readline())
        assert lives(pid)
        guard = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        time.sleep(0.3)  # the second call has begun
        parent.send_signal(signal.SIGKILL)
    assert wait_until_gone(pid)
    assert wait_until_gone(child_of(tmp_path))
    assert wait_until_gone(guard)


def test_workers_ignore_an_interrupt():
    with Grader([spec("process")]) as grader:
        pid = int(grade(grader, ["a"]).scores_BM[0, 0])
        os.kill(pid, signal.SIGINT)
        assert int(grade(grader, ["a"]).scores_BM[0, 0]) == pid


def test_a_grader_whose_trainer_was_killed_ends_without_a_word(monkeypatch, capfd):
    here, there = socket.socketpair()
    there.close()
    monkeypatch.setattr(builtins, "__import__", builtins.__import__)
    speech = grader_worker._Speech(here)

    def leave(code):
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    with here, pytest.raises(SystemExit, match="1"):
        speech.send({"scores": [1.0]})
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("source", "seconds"),
    [("rewards.py:length", 120), ("model:folder", 1800),
     ('strop.rewards.first_error:flaw(model="folder")', 1800),
     ('strop.rewards.first_error:flaw(judge="judge.toml")', 120)],
)  # fmt: skip
def test_weights_have_more_time_to_load(source, seconds, monkeypatch):
    monkeypatch.setattr(WorkerProcess, "launch", lambda *given: None)
    limits = []
    monkeypatch.setattr(WorkerProcess, "_write", lambda self, given, limit: limits.append(limit))
    WorkerProcess([RewardSpec("r", source)], None).start()
    assert limits == [seconds]
