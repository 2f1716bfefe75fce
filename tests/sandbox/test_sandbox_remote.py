"""Rewards whose code runs on a server with SandboxFusion's interface: a real server and client."""

import socket

import pytest
from sandbox_server import answer, serve

from strop.rewards.code import RunPython, RunTests
from strop.rewards.grader import Grader
from strop.rewards.scored import Unscored
from strop.rewards.source import RewardSpec
from strop.sandbox import remote as sandbox_remote
from strop.support.errors import UserError
from strop.support.exits import Exit
from strop.support.http import Retries

DOUBLE = "```python\ndef f(x):\n    return 2 * x\n```"
ADD = "```python\na, b = map(int, input().split())\nprint(a + b, ' ')\n```"


def scored(reward, completions, **columns):
    failures = []
    scores = reward(completions, lambda _, values: failures.extend(values), **columns)
    return scores, failures


@pytest.fixture
def at_once(monkeypatch):
    """No waits between tries."""
    monkeypatch.setattr(sandbox_remote, "RETRIES", Retries(4, 0.001))


def test_programs_and_tests_are_run_over_there():
    with serve() as served:
        reward = RunTests(url=served.url, memory_mb=200, seconds=4)
        texts = ["```python\ndef f(x)\n```", "```python\nraise SystemExit\n```"]
        tests = [["assert f(1) == 2", "assert f(2) == 5"]] * 3
        scores, failures = scored(reward, [DOUBLE, *texts], tests=tests)
        assert scores == [0.5, 0.0, 0.0]
        assert failures[0] == "case 2: AssertionError"
        assert failures[1].startswith("case 1: SyntaxError")
        assert failures[2] == "case 1: ended early"  # before the test
        unended = "print('no line end', end='')\ndef f(x):\n    return 2 * x"
        assert scored(reward, [unended], tests=[["assert f(1) == 2"]]) == ([1.0], [""])
        columns = {"inputs": [["1 2\n", "3 4\n"]], "outputs": [["3\n", "8"]]}
        assert scored(reward, [ADD], **columns) == ([0.5], ["case 2: printed '7  \\n'"])
        python = RunPython(url=f"{served.url}/")
        assert scored(python, ["print(6 * 7)", "print(41)"], answer=["42", "42"])[0] == [1.0, 0.0]
    body = next(b for b in served.bodies if b["stdin"] == "3 4\n")
    assert (body["run_timeout"], body["memory_limit_MB"], body["language"]) == (4.0, 200, "python")
    assert "8" not in body["code"]  # the wanted output stays here
    assert len(served.connections) < len(served.bodies)  # they are kept


def test_slow_code_and_long_output_fail(monkeypatch):
    monkeypatch.setattr(sandbox_remote, "ANSWER_BYTES", 5000)
    with serve() as served:
        reward = RunTests(url=served.url, seconds=1.0, answer_seconds=1.5)
        scores, failures = scored(
            reward, ["import time\ntime.sleep(60)", "print('y' * 9000)"],
            inputs=[[""] * 9, [""]], outputs=[[""] * 9, ["y"]],
        )  # fmt: skip
    assert scores == [0.0, 0.0]
    assert failures == ["case 1: over 1 s", "case 1: printed over 5000 bytes"]
    sleeps = [body["run_timeout"] for body in served.bodies if "sleep" in body["code"]]
    assert sleeps == [1.0, 0.5]  # then its 1.5 s are over


def test_what_fails_over_there_has_a_cause(at_once):
    said = {}
    with serve(lambda body: said.get("next")) as served:
        reward = RunPython(url=served.url)
        for reply, reason, tries, cause in (
            ((200, answer("SandboxError", None, "no room")), "failed: no room", 4, Exit.CRASH),
            ((200, "<html>"), "none of SandboxFusion's: b'<html>'", 1, Exit.UNREACHABLE),
            ((200, '{"status": "Odd"}'), "none of SandboxFusion's", 1, Exit.UNREACHABLE),
            ((200, answer("Failed", None)), "it gives no reason", 4, Exit.CRASH),
            ((504, "late"), "did not answer: HTTP 504: late", 4, Exit.UNREACHABLE),
            ((422, "no field"), "did not answer: HTTP 422: no field", 1, Exit.UNREADABLE),
            ((302, ""), "a redirect to nowhere", 1, Exit.UNREACHABLE),
        ):
            said["next"], before = reply, len(served.bodies)
            ((score,), _) = scored(reward, ["print(1)"], answer=["1"])
            assert isinstance(score, Unscored)
            assert reason in score.reason
            assert score.cause is cause
            assert served.url in score.reason
            assert len(served.bodies) - before == tries


def test_a_busy_server_is_asked_again(at_once):
    busy = [(429, "wait"), (503, "soon"), None]
    with serve(lambda body: busy.pop(0) if "'two'" in body["code"] else None) as served:
        assert scored(RunPython(url=served.url), ["print('two')"], answer=["two"])[0] == [1.0]
    assert busy == []


def test_in_the_grader_what_is_not_run_costs_only_its_row():
    def instead(body):
        return (400, "odd") if "bad" in body["code"] else None

    with serve(instead) as served:
        specs = [RewardSpec("code", f"run_python(url='{served.url}', parallel=2)")]
        with Grader(specs, timeout_seconds=0.05) as grader:  # the reward limits its own time
            texts = ["print(1)", "bad", "print(2)"]
            grades = grader.grade(["p"] * 3, texts, [[1]] * 3, {"answer": ["1"] * 3})
    assert grades.scored_B.tolist() == [True, False, True]
    assert grades.scores_BM[[0, 2], 0].tolist() == [1.0, 0.0]
    assert "HTTP 400: odd" in grades.failures[0].message


def test_a_server_that_lets_an_answer_wait_leaves_it_unscored():
    def late(body):
        done = {"status": "Finished", "execution_time": 0.0, "return_code": 0, "stdout": "42\n"}
        return 200, answer("Success", done)

    with serve(late) as served:
        reward = RunTests(url=served.url, wait_seconds=20)
        reward.remote.wait_seconds = 1e-6
        ((score,), _) = scored(reward, ["x"], inputs=[["", ""]], outputs=[["42", "42"]])
    assert "let an answer wait" in score.reason


def test_the_graders_limit_is_later_than_the_rewards_own():
    with serve() as served:
        reward = RunTests(url=served.url, parallel=3, seconds=2, answer_seconds=6, wait_seconds=5)
    # all runs, all waits, and a last run with four tries of 7 s and the three longest waits
    slowest = 6 + 5 + 4 * 7 + 3 * 75
    assert reward.remote.most_seconds(6) == 4 * (6 + 5) + sandbox_remote.RETRIES.longest_wait
    for num_rows in (1, 7, 64):
        assert reward.timeout_seconds * (1 + (num_rows - 1) / 32) > -(-num_rows // 3) * slowest


def test_mistakes_are_refused_before_anything_runs(at_once):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UserError, match="refused: start a SandboxFusion server there, or mend"):
        RunTests(url=f"http://127.0.0.1:{port}")
    for url, why in (
        ("127.0.0.1:8080", "it must begin with http:// or https:// and a host"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("http://x:65536", "Port out of range"),
    ):
        with pytest.raises(UserError, match=f"a code reward with url='.*': {why}"):
            RunTests(url=url)
    with pytest.raises(UserError, match="url and packages: the server has limits of its own"):
        RunTests(url="http://x", packages=True)
    with pytest.raises(UserError, match="wait_seconds=0: make it positive"):
        RunTests(url="http://x", wait_seconds=0)
    with (
        serve(lambda body: (404, "no such place")) as served,
        pytest.raises(UserError, match="HTTP 404: no such place: start a SandboxFusion server"),
    ):
        RunPython(url=served.url)
    wrong = {"status": "Finished", "return_code": 0, "stdout": "41"}
    with (
        serve(lambda body: (200, answer("Success", wrong))) as served,
        pytest.raises(UserError, match="does not run Python: it printed '41', not 42"),
    ):
        RunPython(url=served.url)
