"""Rewards that run code: what is read as code, what counts as passed, what is an error."""

import os

import pytest

from strop.rewards.code import RunPython, RunTests, code_of
from strop.rewards.grader import Grader
from strop.rewards.source import RewardSpec
from strop.support.errors import UserError

DOUBLE = "```python\ndef f(x):\n    return 2 * x\n```"
ADD = "```python\na, b = map(int, input().split())\nprint(a + b, ' ')\n```"


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        ("first\n```python\na = 1\n```\nbetter\n```python\na = 2\n```\nso", "a = 2\n"),
        ("```py\na = 1\n```\n```\noutput\n```", "a = 1\n"),
        ("```Python3 \r\na = 1\n```", "a = 1\n"),
        ("```json\n{}\n```\n```\na = 1\n```", "a = 1\n"),
        ("a = 1", "a = 1"),
        ("```python\nunclosed", "```python\nunclosed"),
        ("", ""),
    ],
)
def test_the_code_of_a_completion(completion, code):
    assert code_of(completion) == code


def graded(source, completions, **columns):
    num = len(completions)
    with Grader([RewardSpec("code", source)]) as grader:
        return grader.grade(["p"] * num, completions, [[1]] * num, columns)


def test_share_of_passed_tests_and_the_first_failure():
    tests = ["assert f(1) == 2", "assert f(2) == 5", "assert f('a') == 'aa'", "f(None)"]
    broken = "```python\ndef f(x)\n```"
    grades = graded("run_tests", [DOUBLE, broken, "", DOUBLE], tests=[tests, tests, tests, None])
    assert grades.scores_BM[:3, 0].tolist() == [0.5, 0.0, 0.0]
    assert grades.scored_B.tolist() == [True, True, True, False]  # no tests: not applicable
    assert grades.failures == ()
    failures = grades.extra["run_tests/failure"]
    assert failures[0] == "case 2: AssertionError"
    assert failures[1].startswith("case 1: SyntaxError")
    assert failures[3] == ""


def test_tests_as_json_text_or_one_text():
    both = ['["assert f(1) == 2", "assert f(1) == 3"]', "assert f(3) == 6\nassert f(0) == 0"]
    assert graded("run_tests", [DOUBLE] * 2, tests=both).scores_BM[:, 0].tolist() == [0.5, 1.0]


def test_programs_with_inputs_and_outputs():
    columns = {"inputs": [["1 2\n", "3 4\n", "x"]], "outputs": [["3\n", "8", "1"]]}
    grades = graded("run_tests", [ADD], **columns)
    assert grades.scores_BM[0, 0] == pytest.approx(1 / 3)
    assert grades.extra["run_tests/failure"] == ["case 2: printed '7  \\n'"]


def test_a_program_that_prints_the_answer_and_fails_is_wrong():
    columns = {"inputs": [["1 2"]], "outputs": [["3"]]}
    grades = graded("run_tests", ["print(3)\nraise SystemExit(3)"], **columns)
    assert grades.scores_BM.tolist() == [[0.0]]
    assert grades.extra["run_tests/failure"] == ["case 1: ended with an exit code that is not 0"]


def test_after_a_chat_prompt_the_last_message_counts():
    chat = [{"role": "assistant", "content": DOUBLE}]
    reward = RunTests()
    assert reward([chat], lambda *_: None, tests=[["assert f(1) == 2"]]) == [1.0]


def test_run_python_compares_what_is_printed():
    texts = ["print(6 * 7)", "print(41)", "1/0", "print(42)"]
    grades = graded("run_python", texts, answer=["42", "42", "42", None])
    assert grades.scores_BM[:3, 0].tolist() == [1.0, 0.0, 0.0]
    assert grades.scored_B.tolist() == [True, True, True, False]
    failures = grades.extra["run_python/failure"]
    assert failures[1:3] == [
        "case 1: printed '41\\n'",
        "case 1: ZeroDivisionError: division by zero",
    ]
    columns = {"ground_truth": [1, None], "answer": ["2", "2"]}  # rows of two layouts
    assert RunPython()(["print(1)", "print(2)"], lambda *_: None, **columns) == [1.0, 1.0]


def test_slow_code_fails_its_cases_and_no_others():
    loop = "```python\ndef f(x):\n    while x:\n        pass\n    return 0\n```"
    tests = ["assert f(0) == 0", "assert f(1) == 0", "assert f(0) == 0"]
    grades = graded("run_tests(seconds=1.5)", [loop, DOUBLE], tests=[tests, ["assert f(1) == 2"]])
    assert grades.scores_BM[:, 0].tolist() == [pytest.approx(2 / 3), 1.0]
    assert "case 2: " in grades.extra["run_tests/failure"][0]


def test_the_time_of_an_answer_is_bounded():
    sleep = "import time\ntime.sleep(60)"
    failures = []
    reward = RunTests(seconds=1.0, answer_seconds=1.2)
    scores = reward([sleep], lambda _, values: failures.extend(values), tests=[["1"] * 50])
    assert scores == [0.0]
    assert failures == ["case 1: over 1 s"]
    assert reward.timeout_seconds == pytest.approx(32 * (1.2 + 1.0) + 30)
    # However many rows, the grader never calls this late: n rows take at most n times 1.2 s.
    assert all(
        reward.timeout_seconds * (1 + (n - 1) / 32) > n * reward.answer_seconds
        for n in (1, 33, 64, 10_000)
    )


def test_an_empty_cell_is_no_test_that_everything_passes():
    texts, said = [DOUBLE, DOUBLE, ""], lambda *_: None
    tests = RunTests()(texts, said, tests=["assert f(1) == 2", " ", ""])
    assert tests == [1.0, None, None]
    inputs = RunTests()(
        texts, said, tests=["", "", ""], inputs=["", "", "1 2"], outputs=["", None, "3"]
    )
    assert inputs == [None, None, 0.0]
    assert RunPython()(["", ""], said, answer=["", "\n"]) == [None, None]


def test_a_whole_number_may_be_in_a_column_of_floats():
    texts = ["print(12)", "print(12.0)", "print(12.5)", "print('  x')"]
    scores = RunPython()(texts, lambda *_: None, answer=[12.0, 12.0, 12.0, "  x"])
    assert scores == [1.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, "needs a column 'tests', or 'inputs' and 'outputs'"),
        ({"inputs": [["1"]]}, "needs a column 'tests'"),
        ({"tests": [[1, 2]]}, r"'tests' is not a list of texts in a row: make '\[1, 2\]' one"),
        ({"inputs": [["1", "2"]], "outputs": [["1"]]}, "a row has 2 inputs and 1 outputs"),
    ],
)
def test_mistakes_in_the_data_are_refused(columns, expected):
    with pytest.raises(UserError, match=expected):
        RunTests()(["x"], lambda *_: None, **columns)


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(UserError, match="memory_mb=0: make it positive"):
        RunTests(memory_mb=0)
    with pytest.raises(UserError, match="needs a column 'ground_truth' or 'answer'"):
        RunPython()(["x"], lambda *_: None)


def test_as_many_runs_at_once_as_this_process_has_cores(monkeypatch):
    """With more of them, each would use up its wall time waiting for a core."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    assert RunTests(without_isolation=True).parallel == 1
    assert RunTests(without_isolation=True, parallel=7).parallel == 7


def test_parts_of_a_megabyte_count():
    limits = RunTests(disk_mb=0.5, memory_mb=300.25).limits
    assert (limits.disk_bytes, limits.memory_bytes) == (2**19, 300 * 2**20 + 2**18)
    assert RunTests(disk_mb=1e-9).limits.disk_bytes == 4096  # 0 would be no limit at all
    assert RunTests(processes=1.5).limits.processes == 2
    assert RunTests(seconds=4.5).limits.cpu_seconds == 5  # not before the wall time


@pytest.mark.parametrize(
    "options",
    [{"seconds": float("inf")}, {"seconds": float("nan")}, {"answer_seconds": "x"},
     {"memory_mb": 10**30}, {"disk_mb": None}, {"parallel": -1}, {"parallel": "a"},
     {"without_isolation": "false"}, {"packages": 1}, {"url": 5}],
)  # fmt: skip
def test_a_limit_that_is_none_is_refused(options):
    (name,) = options
    with pytest.raises(UserError, match=f"a code reward with {name}="):
        RunTests(**options)
