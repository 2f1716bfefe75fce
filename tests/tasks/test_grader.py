"""Grading outside the training process: scores, isolation of failures, and lifetimes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.errors import UserError
from strop.tasks.grader import Grader, weighted_sum
from strop.tasks.task import RewardSpec

REWARDS = '''
import asyncio, os, random, re, sys, time

def length(completions, **columns):
    print("printed by a reward")
    os.write(1, b"written to descriptor one")
    return [float(len(text)) for text in completions]

def share(completions):
    """Depends on the whole batch: each length over the sum of lengths."""
    total = sum(len(text) for text in completions)
    return [len(text) / total for text in completions]

def hostile(completions):
    for text in completions:
        if "exit" in text:
            os._exit(7)
        if "raise" in text:
            raise RuntimeError("bad row: " + text)
        if "hang" in text:
            time.sleep(60)
        if "signal" in text:
            os.kill(os.getpid(), 11)
        if "system" in text:
            sys.exit("left")
    return share(completions)

def alone(completions):
    return [hostile([text])[0] + len(text) for text in completions]

def backtracks(completions):
    return [float(re.match("(a+)+$", text) is not None) for text in completions]

def jointly(completions):
    if len(completions) > 2:
        raise ValueError("too many")
    return [1.0] * len(completions)

async def sleepy(completions, answer, trainer_state):
    async def one(text, wanted):
        await asyncio.sleep(0.01)
        return (text == wanted) * trainer_state.global_step
    return await asyncio.gather(*(one(t, a) for t, a in zip(completions, answer)))

def logs(completions, log_metric, log_extra):
    log_metric("longest", max(len(text) for text in completions))
    log_extra("upper", [text.upper() for text in completions])
    return [None if text == "skip" else 0.5 for text in completions]

def chat(prompts, completions):
    return [float(c[0]["role"] == "assistant" and c[0]["content"] == p[-1]["content"])
            for p, c in zip(prompts, completions)]

def ids(completion_ids):
    return [sum(row) for row in completion_ids]

def noise(completions):
    return [random.random() for text in completions]

def process(completions):
    return [os.getpid()] * len(completions)

def child(completions):
    import subprocess
    pid = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]).pid
    with open("child.pid", "w") as file:
        file.write(str(pid))
    return [0.0 if text != "hang" else time.sleep(60) for text in completions]

def returns(completions, answer):
    return eval(answer[0])
'''


@pytest.fixture(autouse=True)
def reward_file(tmp_path, monkeypatch):
    (tmp_path / "rewards.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)


def spec(function, **options):
    return RewardSpec(function, f"rewards.py:{function}", **options)


def grade(grader, completions, prompts=None, step=0, **columns):
    num = len(completions)
    ids = [[len(text)] * 2 for text in completions]
    return grader.grade(prompts or ["p"] * num, completions, ids, columns, step)


def grade_once(specs, completions, timeout_seconds=10.0, num_workers=1, **columns):
    with Grader(specs, timeout_seconds, num_workers) as grader:
        return grade(grader, completions, **columns)


def kinds(grades):
    return [(f.row, f.reward, f.kind) for f in grades.failures]


def is_running(pid):
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def wait_until_gone(pid, seconds=5.0):
    deadline = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


def test_scores_of_several_rewards_and_prints_do_no_harm():
    grades = grade_once([spec("length"), spec("ids")], ["a", "bbb", ""])
    assert grades.scores_BM.tolist() == [[1.0, 2.0], [3.0, 6.0], [0.0, 0.0]]
    assert grades.scores_BM.dtype == np.float64
    assert grades.scored_B.tolist() == [True] * 3
    assert grades.failures == ()
    assert 0 < grades.seconds < 5


def test_prints_go_to_the_log(tmp_path):
    with Grader([spec("length")], log=tmp_path / "log.txt") as grader:
        grade(grader, ["a"])
    log = (tmp_path / "log.txt").read_text()
    assert "printed by a reward" in log
    assert "written to descriptor one" in log


def test_an_empty_batch():
    grades = grade_once([spec("length"), spec("share")], [])
    assert grades.scores_BM.shape == (0, 2)
    assert grades.scored_B.shape == (0,)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_rows_that_exit_raise_or_hang_cost_only_themselves(num_workers):
    texts = ["aa", "exit", "b", "raise", "hang", "ccccc", "signal", "system"]
    grades = grade_once([spec("hostile"), spec("length")], texts, 0.6, num_workers)
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
    assert "rewards.py:19" in messages[3]
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


@pytest.mark.parametrize("num_workers", [1, 3])
def test_the_eighth_late_row_ends_the_search(num_workers):
    texts = ["ok", *["hang"] * 9, "ok", "ok"]
    grades = grade_once([spec("hostile")], texts, 0.25, num_workers)
    assert [f.row for f in grades.failures] == [*range(1, 12)]
    assert {f.kind for f in grades.failures} == {"timeout"}
    tried = [f for f in grades.failures if not f.message.startswith("not tried: 8 rows before")]
    assert [f.row for f in tried] == list(range(1, 9))
    assert grades.scores_BM[0, 0] == 1.0


def test_a_failure_of_the_batch_as_a_whole_leaves_it_unscored():
    grades = grade_once([spec("jointly"), spec("length")], ["a", "b", "c"])
    assert kinds(grades) == [(i, "jointly", "exception") for i in range(3)]
    assert (
        "3 rows fail together, each passes alone: ValueError: too many"
        in grades.failures[0].message
    )
    assert grades.scores_BM[:, 1].tolist() == [1.0, 1.0, 1.0]
    assert not grades.scored_B.any()


def test_single_row_failures():
    for text, kind in (("exit", "crash"), ("raise", "exception"), ("hang", "timeout")):
        grades = grade_once([spec("hostile")], [text], 0.3)
        assert kinds(grades) == [(0, "hostile", kind)]


def test_async_rewards_run_their_rows_together_and_see_the_step():
    with Grader([spec("sleepy")]) as grader:
        grade(grader, ["warm"], answer=["up"])
        grades = grade(grader, ["a"] * 300, answer=["a", "b"] * 150, step=4)
    assert grades.scores_BM[:, 0].tolist() == [4.0, 0.0] * 150
    assert grades.seconds < 2.0  # one after the other: 3 seconds


def test_log_metric_and_log_extra():
    grades = grade_once([spec("logs")], ["a", "skip", "ccc"])
    assert grades.metrics == {"longest": 4.0}
    assert grades.extra == {"upper": ["A", "SKIP", "CCC"]}
    assert np.isnan(grades.scores_BM[1, 0])
    assert grades.scored_B.tolist() == [True, False, True]
    assert grades.failures == ()


def test_logged_values_of_pieces_are_joined():
    texts = ["aa"] * 64 + ["a"] * 32
    grades = grade_once([spec("logs", rows_are_independent=True)], texts)
    assert grades.metrics == {"longest": pytest.approx((2 * 64 + 1 * 32) / 96)}
    assert grades.extra["upper"] == ["AA"] * 64 + ["A"] * 32


def test_none_leaves_a_reward_out_of_the_sum():
    grades = grade_once([spec("logs"), spec("length")], ["a", "skip"])
    assert grades.scored_B.tolist() == [True, True]
    # 2 * 0.5 - 1 * 1 and -1 * 4 alone
    assert weighted_sum(grades.scores_BM, (2.0, -1.0)).tolist() == [0.0, -4.0]
    nothing = weighted_sum(np.array([[np.nan, np.nan], [1.0, np.nan]]), (0.5, 3.0))
    assert np.isnan(nothing[0])
    assert nothing[1] == 0.5
    with pytest.raises(ValueError, match="3 weights for 2 rewards"):
        weighted_sum(grades.scores_BM, (1.0, 1.0, 1.0))


def test_chat_prompts_give_completions_as_messages():
    prompts = [[{"role": "user", "content": "echo"}], [{"role": "user", "content": "other"}]]
    assert grade_once([spec("chat")], ["echo", "echo"], prompts=prompts).scores_BM.tolist() == [
        [1.0],
        [0.0],
    ]


def test_fields_map_parameters_to_columns():
    mapped = RewardSpec("exact", "exact_match", fields={"answer": "truth"})
    grades = grade_once([mapped], ["4", "5"], truth=[4, 4])
    assert grades.scores_BM[:, 0].tolist() == [1.0, 0.0]


def test_built_in_math_verify():
    grades = grade_once([RewardSpec("right", "math_verify")], ["\\boxed{1/2}"], answer=["0.5"])
    assert grades.scores_BM.tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("[1.0]", "returned 1 scores for 2 completions"),
        ("[1.0, float('nan')]", "returned nan (float) for row 1"),
        ("[float('inf'), 0]", "returned inf (float) for row 0"),
        ("['1', 0]", "returned '1' (str) for row 0"),
        ("[[1], 0]", "returned [1] (list) for row 0"),
        ("0.5", "returned 0.5 (float): it must return a list"),
        ("None", "returned None (NoneType): it must return a list"),
        ("'ab'", "returned 'ab' (str): it must return a list"),
    ],
)
def test_a_wrong_result_is_refused(expression, expected):
    with Grader([spec("returns")]) as grader:
        with pytest.raises(UserError) as caught:
            grade(grader, ["a", "b"], answer=[expression] * 2)
        assert f"rewards.py:returns {expected}" in str(caught.value)
        again = grade(grader, ["a", "b"], answer=["[True, __import__('numpy').float32(2)]"] * 2)
        assert again.scores_BM[:, 0].tolist() == [1.0, 2.0]


def test_a_refusal_while_other_workers_are_busy_leaves_no_late_reply():
    with Grader([spec("returns"), spec("sleepy")], num_workers=2) as grader:
        with pytest.raises(UserError):
            grade(grader, ["a"] * 2, answer=["1"] * 2)
        grades = grade(grader, ["[3]"], answer=["[3]"], step=2)
    assert grades.scores_BM.tolist() == [[3.0, 2.0]]


def test_a_missing_column_is_refused_before_training():
    with Grader([spec("sleepy")]) as grader:
        grader.check(["answer", "level"])
        with pytest.raises(UserError, match=r"'answer'.*did you mean 'answers'.*answers, level"):
            grader.check(["answers", "level"])
        with pytest.raises(UserError, match="'answer'"):
            grade(grader, ["a"])


def test_columns_of_another_length_are_refused():
    with Grader([spec("length")]) as grader, pytest.raises(ValueError, match="answer has 1"):
        grade(grader, ["a", "b"], answer=["a"])


def test_loading_mistakes_show_at_once(tmp_path):
    (tmp_path / "dies.py").write_text("import os\nos._exit(3)\n")
    for source, expected in (
        ("dies.py:f", "loading the rewards dies.py:f: the process ended itself with exit code 3"),
        ("rewards.py:lenght", "did you mean 'length'?"),
    ):
        with pytest.raises(UserError) as caught:
            Grader([RewardSpec("r", source)])
        assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("specs", "options"),
    [([], {}), ([1, 1], {}), ([1], {"timeout_seconds": 0}), ([1], {"num_workers": 0})],
)
def test_settings_that_make_no_sense(specs, options):
    with pytest.raises(UserError, match=r"rewards are named|make both positive"):
        Grader([spec("length") for _ in specs], **options)


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


PARENT = """
import sys
from strop.tasks.grader import Grader
from strop.tasks.task import RewardSpec
specs = [RewardSpec("process", "rewards.py:process"), RewardSpec("hostile", "rewards.py:hostile")]
with Grader(specs) as grader:
    pid = grader.grade(["p"], ["a"], [[]], {}).scores_BM[0, 0]
    print(int(pid), flush=True)
    grader.grade(["p"], [sys.argv[1]], [[]], {})
    sys.stdin.read()
"""


@pytest.mark.parametrize("text", ["idle", "hang"])
def test_workers_end_with_a_killed_parent(text):
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        time.sleep(0.3)  # the second call has begun
        parent.send_signal(signal.SIGKILL)
    assert wait_until_gone(pid)


def test_workers_ignore_an_interrupt():
    with Grader([spec("process")]) as grader:
        pid = int(grade(grader, ["a"]).scores_BM[0, 0])
        os.kill(pid, signal.SIGINT)
        assert int(grade(grader, ["a"]).scores_BM[0, 0]) == pid


def test_random_rewards_do_not_depend_on_the_workers():
    texts = ["x"] * 130
    specs = [spec("noise"), RewardSpec("pieces", "rewards.py:noise", rows_are_independent=True)]
    one, three = (grade_once(specs, texts, num_workers=n).scores_BM for n in (1, 3))
    assert (one == three).all()
    assert len(set(one[:, 0])) == 130
    assert not (one[:, 0] == one[:, 1]).any()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    path = tmp_path_factory.mktemp("shared") / "rewards.py"
    path.write_text(REWARDS)
    specs = [RewardSpec("share", f"{path}:share"), RewardSpec("logs", f"{path}:logs")]
    with Grader(specs) as grader:
        yield grader


@settings(max_examples=20)
@given(
    rows=st.lists(st.text("abc", min_size=1, max_size=8) | st.just("skip"), min_size=1, max_size=8),
    data=st.data(),
)
def test_permuting_rows_permutes_scores(shared, rows, data):
    order = data.draw(st.permutations(range(len(rows))))
    whole = grade(shared, rows)
    permuted = grade(shared, [rows[i] for i in order])
    np.testing.assert_array_equal(whole.scores_BM[order], permuted.scores_BM)
    assert [whole.extra["upper"][i] for i in order] == permuted.extra["upper"]
