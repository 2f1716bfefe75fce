"""Watching runs: the server's responses while a run's files grow, shrink and break."""

import http.client
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from runs import numbers_in
from test_page import Elements

from strop.report.local_server import LocalServer
from strop.report.run_folder import Run
from strop.report.watch import Watched, open_server, state_of
from strop.support.errors import UserError
from strop.training.record.lock import Lock, in_use

MakeRun = Callable[..., Path]
CONFIG = 'recipe = "grpo"\n[training]\nsteps = 40\n'
HOLD = """
import sys
from pathlib import Path
from strop.training.record.lock import Lock
Lock(Path(sys.argv[1])).take()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def training(folder: Path) -> Iterator[None]:
    """Inside, another process has the run, as if it was training."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            process.communicate()


@contextmanager
def serving(*folders: Path) -> Iterator[LocalServer]:
    with open_server(Watched(folders), 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def data(server: LocalServer, seen: str = "") -> dict[str, Any]:
    with urllib.request.urlopen(f"{server.url}data?seen={seen}") as answer:
        assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
        found: dict[str, Any] = json.load(answer)
    return found


def points(found: dict[str, Any]) -> int:
    """How many rewards are on the page."""
    (first, *_) = Elements(found["parts"]["learning"]).blocks
    return len(json.loads(first)["data"][0]["x"])


def grow(folder: Path, step: int) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "reward": 0.5, "step_time": 4.0}) + "\n")


def test_a_run_is_followed_as_it_grows_is_cut_and_ends(make_run: MakeRun) -> None:
    folder = make_run(num_steps=3, config=CONFIG)
    with ExitStack() as stack:
        server = stack.enter_context(serving(folder))
        with training(folder):
            first = data(server)
            assert first["title"].startswith("training, step 3 of 40, ")
            assert points(first) == 3
            again = data(server, first["version"])
            assert "parts" not in again
            assert again["version"] == first["version"]
            grow(folder, 4)
            grown = data(server, first["version"])
            assert "step 4 of 40" in grown["parts"]["header"]
            assert points(grown) == 4
            whole = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
            (folder / "metrics.jsonl").write_text("".join(whole[:2]))  # a resumed run cuts
            assert points(data(server)) == 2
            (folder / "metrics.jsonl").write_text(whole[0])
            for step in range(2, 7):  # cut, and longer than before when it is looked at next
                grow(folder, step)
            assert points(data(server)) == 6
        stopped = data(server)
        assert stopped["title"].startswith("stopped after step 6 of 40 - ")
        assert stopped["wait"] == 15
        for step in range(7, 41):
            grow(folder, step)
        complete = data(server)
        assert complete["title"].startswith("complete, 40 steps - ")
        assert complete["wait"] == 0  # the page asks no more


def test_only_what_is_new_is_read(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    from strop.tracking import metrics_file

    folder, read = make_run(num_steps=30), []
    real = metrics_file._values
    monkeypatch.setattr(metrics_file, "_values", lambda *a: (read.append(a[1]), real(*a))[1])
    watched = Watched([folder])
    assert read == list(range(1, 31))
    grow(folder, 31)
    watched.look()
    watched.look()
    assert read[30:] == [31]


def test_a_run_that_has_no_step_yet_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    with serving(tmp_path) as server:
        assert data(server)["title"].startswith("stopped before the first step - ")
        with training(tmp_path):
            found = data(server)
            assert found["title"].startswith("starting, no step yet - ")
            assert "learning" not in found["parts"]
            grow(tmp_path, 1)
            assert points(data(server)) == 1


def test_a_damaged_line_is_told_and_what_was_seen_stays(make_run: MakeRun) -> None:
    folder = make_run(num_steps=3, config=CONFIG)
    path = folder / "metrics.jsonl"
    with serving(folder) as server:
        before = path.read_text()
        path.write_text(before + "<b>\n")
        found = data(server)
        assert "cannot be read: " in found["parts"]["header"]
        assert "line 4 is not a line of metrics" in found["parts"]["header"]
        assert points(found) == 3
        path.write_text(before)
        grow(folder, 4)
        assert points(data(server)) == 4


def test_several_runs_are_watched_at_once(make_run: MakeRun) -> None:
    folders = [make_run(name, 40, config=CONFIG + f"lr = {i}.0\n") for i, name in enumerate("ab")]
    late = make_run("c", 5, config=CONFIG)
    with serving(*folders, late) as server:
        found = data(server)
        states = [f"{name}: complete, 40 steps" for name in "ab"] + [
            "c: stopped after step 5 of 40"
        ]
        for state in states:
            assert f'<p class="state">{state}</p>' in found["parts"]["header"]
        assert found["wait"] == 15  # of the one that may still go on


def test_the_page_may_ask_its_own_server_alone(make_run: MakeRun) -> None:
    with serving(make_run(num_steps=3)) as server:
        assert server.server_address[0] == "127.0.0.1"
        with urllib.request.urlopen(server.url) as answer:
            page, headers = answer.read().decode(), answer.headers
    elements = Elements(page)
    assert elements.fetched == []
    assert elements.policy.split("; ") == [
        "default-src 'none'", "script-src 'unsafe-inline'", "style-src 'unsafe-inline'",
        "img-src data: blob:", "font-src data:", "connect-src 'self'",
    ]  # fmt: skip
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers


def test_another_name_or_token_gets_nothing(make_run: MakeRun) -> None:
    with serving(make_run(num_steps=3)) as server:
        port, own = server.server_port, f"/{server.token}"
        for host, path, status in (
            (f"127.0.0.1:{port}", f"{own}/", 200), (f"LOCALHOST:{port}", f"{own}/data", 200),
            (f"evil.example:{port}", f"{own}/", 403), (f"evil.example:{port}", f"{own}/data", 403),
            ("127.0.0.1", f"{own}/", 403), (f"127.0.0.1:{port + 1}", f"{own}/", 403),
            ("", f"{own}/", 403), (f"127.0.0.1.evil.example:{port}", f"{own}/data", 403),
            (f"localhost:{port}", "/", 403), (f"localhost:{port}", "/data", 403),
            (f"localhost:{port}", f"{own[:-1]}/", 403), (f"localhost:{port}", "/\xe9/", 403),
            (f"localhost:{port}", "http://[", 400),
            (f"localhost:{port}", f"{own}/../etc/passwd", 404),
            (f"localhost:{port}", f"{own}/data/", 404),
        ):  # fmt: skip
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.putrequest("GET", quote(path, "/:["), skip_host=True)
            connection.putheader("Host", host)
            connection.endheaders()
            answer = connection.getresponse()
            assert (answer.status, host, path) == (status, host, path)
            assert status == 200 or b"reward" not in answer.read()
            connection.close()
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", f"{own}/", b"x")
        assert connection.getresponse().status == 501
        connection.close()


@pytest.mark.parametrize(
    ("rows", "active", "text", "wait"),
    [
        ([4.0] * 37, True, "training, step 37 of 200, 11 min left", 2.0),
        ([20.0] * 37, True, "training, step 37 of 200, 54 min left", 10.0),
        ([400.0] * 37, True, "training, step 37 of 200, 18.1 h left", 15.0),
        ([0.1] * 190, True, "training, step 190 of 200, 1 s left", 2.0),
        ([100.0] * 50 + [1.0] * 50, True, "training, step 100 of 200, 2 min left", 2.0),
        ([1.0] * 200, True, "finishing, step 200 of 200", 2.0),
        ([1.0] * 200, False, "complete, 200 steps", 0.0),
        ([1.0] * 37, False, "stopped after step 37 of 200", 15.0),
    ],
)
def test_the_state_says_how_far_a_run_is(
    rows: list[float], active: bool, text: str, wait: float
) -> None:
    lines = [{"step": i + 1, "step_time": seconds} for i, seconds in enumerate(rows)]
    run = Run("a", *numbers_in(lines), "[training]\nsteps = 200\n", (), ())
    state = state_of(run, active)
    assert (state.text, state.wait) == (text, wait)
    if len(rows) == 200:
        why = "The run stopped after step 199: step 200 is not saved"
        failed = Run("a", *numbers_in(lines), "[training]\nsteps = 200\n", (), (why,))
        assert state_of(failed, active=False).text == "stopped after step 200 of 200"
    bare = Run("a", *numbers_in(lines[:3]), None, (), ())
    assert state_of(bare, active=True).text == "training, step 3"
    assert state_of(bare, active=False).text == "stopped after step 3"


def test_asking_whether_a_run_is_in_use_takes_nothing(tmp_path: Path) -> None:
    assert not in_use(tmp_path)
    (tmp_path / ".lock").write_text("process 1 on a machine that was switched off\n")
    assert not in_use(tmp_path)
    with training(tmp_path):
        assert in_use(tmp_path)
        with pytest.raises(UserError, match="is in use by process"):
            Lock(tmp_path).take()
    lock = Lock(tmp_path)
    lock.take()  # nothing of the question is left
    lock.free()


def test_what_cannot_be_watched_is_said_in_one_line(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least one"):
        Watched([])
    for folder, why in ((tmp_path, r"has no metrics\.jsonl"), (tmp_path / "no", "does not exist")):
        with pytest.raises(UserError, match=f"is not a run: it {why}"):
            Watched([folder])
    inside = tmp_path / "runs" / "grpo-0"  # as in a comparison's folder
    inside.mkdir(parents=True)
    (inside / "metrics.jsonl").touch()
    with pytest.raises(UserError, match=f"the folder that training wrote, such as {inside}$"):
        Watched([tmp_path])
    watched = Watched([make_run(num_steps=1)])
    with (
        open_server(watched, 0) as server,
        pytest.raises(
            UserError, match=rf"port {server.server_port} cannot be used: .* give another one"
        ),
    ):
        open_server(watched, server.server_port)
