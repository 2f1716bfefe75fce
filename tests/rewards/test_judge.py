"""A judge behind an endpoint: its requests, how its answer becomes a score, and its failures."""

import json
import socket
import threading
import time

import pytest
from judge_server import chat, serve, serve_bytes

from strop.rewards.grader import Grader
from strop.rewards.judge import Judge, read_settings
from strop.rewards.scored import Unscored
from strop.rewards.source import RewardSpec
from strop.support.errors import UserError
from strop.support.exits import Exit

FILE = """
base_url = "{url}"
model = "judge-7b"
prompt = '''Question: {{prompt}}
Reference: {{answer}}
Answer: {{completion}}
End with "Score: N", N from 1 to 5.'''
score = 'Score:\\s*(-?[\\d.]+)'
scale = [1, 5]
backoff_seconds = 0.01
timeout_seconds = 5
"""


def write(folder, url, more=""):
    path = folder / "judge.toml"
    path.write_text(FILE.format(url=url) + more)
    return path


def ask(path, *completions, prompts=None, **columns):
    num = len(completions)
    logged = {}
    scores = Judge(str(path))(
        prompts or ["1+1"] * num,
        list(completions),
        logged.__setitem__,
        **{"answer": ["2"] * num, **columns},
    )
    return scores, logged["judge"]


def test_the_endpoint_is_asked_and_scores_are_scaled(tmp_path):
    def answer(body):
        text = body["messages"][-1]["content"]
        return "I see.\nScore: 2 at first.\nScore: " + ("5" if "Answer: 2\n" in text else "2.0")

    with serve(answer) as served:
        more = 'system = "Be strict."\nmax_tokens = 9\n[extra_body]\nseed = 4\n'
        scores, said = ask(write(tmp_path, served.url, more), "2", "3 {x}")
    assert scores == [1.0, 0.25]  # (5 - 1) / 4 and (2 - 1) / 4: the last match counts
    assert said[1] == "I see.\nScore: 2 at first.\nScore: 2.0"
    body = next(b for b in served.bodies if "3 {x}" in b["messages"][1]["content"])
    assert body["model"] == "judge-7b"
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.0, 9, 4)
    assert body["messages"][0] == {"role": "system", "content": "Be strict."}
    assert body["messages"][1]["content"].startswith(
        "Question: 1+1\nReference: 2\nAnswer: 3 {x}\nEnd"
    )
    assert all("Authorization" not in headers for headers in served.headers)


def test_a_judge_that_calls_its_limit_otherwise_is_told_it_once(tmp_path):
    with serve(lambda body: "Score: 3") as served:
        ask(write(tmp_path, served.url, "[extra_body]\nmax_completion_tokens = 99\n"), "2")
    (body,) = served.bodies
    assert body["max_completion_tokens"] == 99
    assert "max_tokens" not in body


def test_messages_become_text(tmp_path):
    user, system = ({"role": r, "content": r + "!"} for r in ("user", "system"))
    with serve(lambda body: "Score: 3") as served:
        completion = [{"role": "assistant", "content": "hello"}]
        path = write(tmp_path, served.url)
        ask(path, completion, prompts=[[user]])
        ask(path, completion, prompts=[[system, user]])
    texts = [body["messages"][0]["content"] for body in served.bodies]
    assert texts[0].startswith("Question: user!\nReference: 2\nAnswer: hello\n")
    assert texts[1].startswith("Question: system: system!\nuser: user!\nReference")


def test_the_key_comes_from_the_environment(tmp_path, monkeypatch):
    with serve(lambda body: "Score: 3") as served:
        path = write(tmp_path, served.url, 'api_key_env = "JUDGE_KEY_OF_TEST"\n')
        with pytest.raises(UserError, match="JUDGE_KEY_OF_TEST is not set"):
            Judge(str(path))
        monkeypatch.setenv("JUDGE_KEY_OF_TEST", "k-123")
        assert ask(path, "2")[0] == [0.5]
    assert served.headers[0]["Authorization"] == "Bearer k-123"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("no idea", "no score in the judge's answer 'no idea'"),
        ("Score: 9", "the judge's score 9 is outside 1 to 5"),
        ("Score: 1.2.3", "the judge's score '1.2.3' is not a number"),
        ((200, "<html>", {}), "the judge did not answer: not a chat completion: b'<html>'"),
        ((200, '{"choices": []}', {}), "the judge did not answer: not a chat"),
        ((200, chat(None), {}), "a chat completion without text"),
        ((401, "bad key", {}), "HTTP 401: bad key; api_key_env names the environment variable"),
        ((404, "Not Found", {}), "HTTP 404: Not Found; base_url ends before /chat/completions"),
    ],
)
def test_what_is_not_a_score_is_unscored_with_the_reason(tmp_path, message, reason):
    with serve(lambda body: message) as served:
        (score,), (logged,) = ask(write(tmp_path, served.url, "retries = 1\n"), "2")
    assert isinstance(score, Unscored)
    assert reason in score.reason
    assert logged == (message if isinstance(message, str) else score.reason)
    asked_again = isinstance(message, tuple) and message[0] == 200
    assert len(served.bodies) == 1 + asked_again


@pytest.mark.parametrize("text", ["<think>", None])
def test_an_answer_that_the_limit_of_tokens_cut_off_names_the_limit(tmp_path, text):
    """None: all tokens were thoughts, which some servers put elsewhere. A score still counts."""
    with serve(lambda body: (200, chat(text, "length"), {})) as served:
        (score,), logged = ask(write(tmp_path, served.url), "2")
    why = f"no score in the judge's answer {text or ''!r}, which max_tokens = 512 cut off"
    assert score == Unscored(why, Exit.UNREADABLE)
    assert (logged, len(served.bodies)) == ([text or ""], 1)
    with serve(lambda body: (200, chat("Score: 5 is", "length"), {})) as served:
        assert ask(write(tmp_path, served.url), "2")[0] == [1.0]


def test_a_busy_endpoint_is_asked_again(tmp_path):
    times = []

    def answer(body):
        times.append(time.monotonic())
        if len(times) < 3:
            return 503, "busy", {"Retry-After": "0"}
        return "Score: 5"

    with serve(answer) as served:
        path = write(tmp_path, served.url, "retries = 3\n")
        path.write_text(path.read_text().replace("backoff_seconds = 0.01", "backoff_seconds = 0.2"))
        assert ask(path, "2")[0] == [1.0]
    assert len(times) == 3
    assert times[1] - times[0] > 0.14  # 0.2 s, give or take a quarter
    assert times[2] - times[1] > 0.29  # 0.4 s


def test_a_late_or_absent_endpoint_leaves_rows_unscored(tmp_path):
    stop = threading.Event()

    def hang(body):
        stop.wait(10)
        return "Score: 5"

    with serve(hang) as served:
        path = write(tmp_path, served.url, "retries = 0\n")
        path.write_text(path.read_text().replace("timeout_seconds = 5", "timeout_seconds = 0.2"))
        (score,), _ = ask(path, "2")
        stop.set()
    assert "timed out" in score.reason
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (score,), _ = ask(write(tmp_path, f"http://127.0.0.1:{port}/v1", "retries = 1\n"), "2")
    assert "refused" in score.reason


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_its_target_never_sees_the_key(
    tmp_path, monkeypatch, status
):
    monkeypatch.setenv("JUDGE_KEY_OF_TEST", "k-123")
    with serve(lambda body: "Score: 5") as elsewhere:
        target = {"Location": f"{elsewhere.url}/chat/completions"}
        with serve(lambda body: (status, "moved", target)) as served:
            path = write(tmp_path, served.url, 'api_key_env = "JUDGE_KEY_OF_TEST"\n')
            (score,), _ = ask(path, "2")
    assert f"HTTP {status}: a redirect to {elsewhere.url}" in score.reason
    assert "mend the url" in score.reason
    assert (len(served.bodies), elsewhere.bodies) == (1, [])


BROKEN = {
    b"not HTTP at all\r\n\r\n": "RemoteProtocolError: illegal status line",
    b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{": "received 1 bytes, expected 900",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}": "illegal chunk header",
    b"HTTP/1.1 200 " + b"y" * 200_000 + b"\r\n\r\n": "too long",
    b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 300 + b"\r\n": "not a chat completion: b''",
    b"": "disconnected without",
    b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000: "not a chat completion",
    b"HTTP/1.1 200 OK\r\n\r\n" + b"9" * 5000: "not a chat completion",
    b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe\xfa": "not a chat completion",
    b"HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\nRetry-After: \xb2\r\n\r\nzz": "HTTP 500: (",
}


@pytest.mark.parametrize("message", BROKEN)
def test_an_answer_that_is_broken_leaves_its_row_unscored(tmp_path, message):
    with serve_bytes(lambda connection: connection.sendall(message)) as url:
        (score,), _ = ask(write(tmp_path, url, "retries = 1\n"), "2")
    assert isinstance(score, Unscored)
    assert BROKEN[message] in score.reason


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize("begin", [b"", HEAD, HEAD + b"Content-Length: 9999\r\n\r\n",
                                   b"HTTP/1.1 500 Oh\r\nContent-Length: 9999\r\n\r\n"])  # fmt: skip
def test_an_answer_that_drips_ends_with_the_limit(tmp_path, begin):
    """Each drop comes well within the limit, the whole answer would take 30 s."""

    def drip(connection):
        connection.sendall(begin)
        for _ in range(600):
            connection.sendall(b"a: b\r\n" if begin == HEAD else b"H")
            time.sleep(0.05)

    with serve_bytes(drip) as url:
        path = write(tmp_path, url, "retries = 0\n")
        path.write_text(path.read_text().replace("timeout_seconds = 5", "timeout_seconds = 0.3"))
        started = time.monotonic()
        (score,), _ = ask(path, "2")
        took = time.monotonic() - started
    assert 0.25 < took < 15
    assert "timed out" in score.reason


def test_a_key_that_no_header_takes_is_refused_without_showing_it(tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY_OF_TEST", "k-123\n")
    with pytest.raises(UserError, match="a line's end") as caught:
        Judge(str(write(tmp_path, "http://x/v1", 'api_key_env = "JUDGE_KEY_OF_TEST"\n')))
    assert "k-123" not in str(caught.value)


def test_completions_are_asked_at_once_up_to_the_limit(tmp_path):
    lock, now, most = threading.Lock(), [0], [0]

    def answer(body):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.1)
        with lock:
            now[0] -= 1
        return "Score: 3"

    with serve(answer) as served:
        assert ask(write(tmp_path, served.url, "concurrency = 4\n"), *"abcdefgh")[0] == [0.5] * 8
    assert most[0] == 4


def test_connections_are_kept_between_batches(tmp_path):
    with serve(lambda body: "Score: 3") as served:
        judge = Judge(str(write(tmp_path, served.url, "concurrency = 2\n")))
        for _ in range(3):
            judge(["p"] * 6, ["c"] * 6, lambda *_: None, answer=["2"] * 6)
        judge.http.close()
    assert len(served.bodies) == 18
    assert 1 <= len(served.connections) <= 2


def test_in_the_grader_failed_calls_cost_only_their_rows(tmp_path):
    def answer(body):
        text = body["messages"][0]["content"]
        return (400, "too long", {}) if "Answer: bad" in text else "Score: 4"

    with serve(answer) as served:
        specs = [RewardSpec("judge", f"judge:{write(tmp_path, served.url)}")]
        with Grader(specs, timeout_seconds=0.05) as grader:  # the judge limits its own time
            columns = {"answer": ["2"] * 3}
            grades = grader.grade(["p"] * 3, ["a", "bad", "c"], [[1]] * 3, columns)
    assert grades.scored_B.tolist() == [True, False, True]
    assert grades.scores_BM[[0, 2], 0].tolist() == [0.75, 0.75]
    (failure,) = grades.failures
    assert (failure.row, failure.cause) == (1, Exit.UNREADABLE)
    assert "HTTP 400: too long" in failure.message
    assert grades.extra["judge"][0] == "Score: 4"


def test_the_graders_limit_is_later_than_the_judges_own(tmp_path):
    judge = Judge(str(write(tmp_path, "http://x/v1", "concurrency = 3\nretries = 2\n")))
    # 3 tries of 5 s, and waits of 0.01 s and 0.02 s that may be a quarter longer
    slowest = 3 * 5 + 1.25 * 0.03
    for num_rows in (1, 7, 64):
        rounds = -(-num_rows // 3)
        assert judge.timeout_seconds * (1 + (num_rows - 1) / 32) > rounds * slowest
    many = Judge(str(write(tmp_path, "http://x/v1", "concurrency = 64\nretries = 2\n")))
    # 32 rows three at a time, or all at once
    assert (judge.timeout_seconds - 30) / (many.timeout_seconds - 30) == pytest.approx(32 / 3)


def test_columns_that_the_prompt_needs(tmp_path):
    judge = Judge(str(write(tmp_path, "http://x/v1")))
    with pytest.raises(UserError, match=r"field \{answer\} and the data has no such column"):
        judge(["p"], ["c"], lambda *_: None, answers=["2"])


def test_a_form_of_numbers_needs_a_column_of_numbers(tmp_path):
    path = write(tmp_path, "http://127.0.0.1:1/v1")
    path.write_text(path.read_text().replace("{answer}", "{answer:.1f}"))
    with pytest.raises(UserError, match="prompt cannot be filled with a row: Unknown format code"):
        Judge(str(path))(["p"], ["c"], lambda *_: None, answer=["2"])
    (result,) = Judge(str(path))(["p"], ["c"], lambda *_: None, answer=[2])
    assert "did not answer" in result.reason


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('model = "judge-7b"', "", "model is missing"),
        ('model = "judge-7b"', "model = 3", "model = 3: Input should be a valid string"),
        ('model = "judge-7b"', 'model = "a"\nmodle = "b"', r"no key 'modle' \(did you mean"),
        ("scale = [1, 5]", "scale = [5, 1]", "must be two rising numbers"),
        ("scale = [1, 5]", "scale = 5", "scale = 5: Input should be a valid list"),
        ("timeout_seconds = 5", 'timeout_seconds = "5"', "= '5': Input should be a valid number"),
        ("timeout_seconds = 5", "timeout_seconds = 0", "should be greater than 0"),
        ("timeout_seconds = 5", "retries = -1", "should be greater than or equal to 0"),
        ("timeout_seconds = 5", "timeout_seconds = nan", "should be less than or equal to 1000000"),
        ("timeout_seconds = 5", "temperature = inf", "should be less than or equal to 1000000"),
        ("scale = [1, 5]", "scale = [1, inf]", "should be less than or equal to 1000000"),
        ("timeout_seconds = 5", "concurrency = 1.5", "should be a valid integer"),
        ("(-?[\\d.]+)", "", "must have a group"),
        ("(-?[\\d.]+)", "(", "is not a plain regular expression"),
        ("(-?[\\d.]+)", "([[]\\d)", "is not a plain regular expression .Possible nested set"),
        ("{prompt}", "{prompt.x}", r"has the field \{prompt.x\}"),
        ("{prompt}", "{0}", r"has the field \{0\}"),
        ("{prompt}", "{", "cannot be read"),
        ("{prompt}", "{prompt!x}", r"has the field \{prompt!x\}, which nothing can fill"),
        ("{prompt}", "{prompt:{width}}", r"has the field \{prompt:\{width\}\}, which nothing"),
        ("{prompt}", "{prompt:.2f}", r"has the field \{prompt:.2f\}, which nothing can fill"),
        ("http://x/v1", "x/v1", "must begin with http"),
        ("http://x/v1", "http://x:99999/v1", "Port out of range"),
        ("scale = [1, 5]", "scale = [1, 5", "is not TOML"),
    ],
)
def test_mistakes_in_the_file(tmp_path, old, new, expected):
    path = write(tmp_path, "http://x/v1")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError, match=expected):
        read_settings(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="cannot read the judge"):
        read_settings(tmp_path / "no.toml")
    assert json.loads(chat("x"))["choices"]
