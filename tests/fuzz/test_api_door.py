"""Wrong arguments of the Python calls, damaged data sets, and requests that no browser sends: each
causes one UserError, or one reply.
"""

import http.client
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
from commands import graders_copied
from doors import TEXTS, Outcomes, damaged, seeded, tries, wrong
from runs import Runner

import strop
from strop.environments.data_files import load_data
from strop.report.local_server import LocalServer, Reply

ROWS = [{"prompt": f"{n}+1:", "completion": str(n + 1), "answer": str(n)} for n in range(4)]
SMALL = {"sampling_num_prompts": 2, "evaluation_every": 0, "training_token_budget": 48}
# Arguments with which a call ends at once, and one of which is then replaced.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "train": {
        "recipe": "sft", "model": "", "data": ROWS, "reward": None, "validation": None, "task": "",
        "tokenizer": None, "config": None, "out": "out", "start": False, "progress": False,
        "callbacks": (), "training_steps": 1, **SMALL,  # where `start` is a right value, too
    },
    "evaluate": {
        "source": "", "data": ROWS, "reward": "exact_match", "task": "", "tokenizer": None, "k": 1,
        "samples": 2, "split": "train", "prompts": 1, "step": 0, "start": False, "best": False,
        "temperature": 1.0, "max_tokens": 3, "seed": 0, "engine": "", "trust_files": True,
    },
    "sample": {
        "source": "", "prompt": "1+1:", "n": 1, "step": 0, "temperature": 1.0, "max_tokens": 3,
        "seed": 0, "engine": "", "trust_files": True,
    },
    "inspect": {"run": "", "step": None, "out": None},
    "doctor": {"run": ""},
    "export": {"source": "", "folder": "", "step": 0, "best": False, "dtype": "", "push": ""},
    "compare": {
        "methods": ["sft"], "seeds": 0, "steps": 1, "at": (), "k": 1, "samples": 0, "prompts": 0,
        "score_on": None, "baseline": "", "by": "steps", "target": None, "band": None, "mean": (),
        "data": ROWS, "jobs": 0, "out": None, "progress": False,
    },
    "audit": {
        "methods": "grpo", "group": 2, "success": 0.3, "staleness": 0, "updates": 1, "step": 0.3,
        "depth": 2, "prompts": 1, "share": 0.5, "most": 20, "draws": 5, "seed": 1,
    },
    "plan": {"workers": (1, 2), "staleness": (1,), "lengths": (), "prompts": 0, "spare": 1.0,
             "exchange": 0.0},
}  # fmt: skip
# Calls that succeed do much work, so they are tried less often.
OFTEN = {"train": 40, "evaluate": 10, "sample": 20, "audit": 20, "export": 15, "plan": 20}


@pytest.fixture(scope="module")
def done(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("done") / "run"
    Runner().whole(lab.raw(training={"steps": 1, "inspect": 4}), folder)
    return folder


def called(name: str, given: dict[str, Any]) -> None:
    """The call; a run that it begins ends at once."""
    place = strop.Run(given.pop("run_of_plan")) if name == "plan" else strop
    found = getattr(place, name)(**given)
    if isinstance(found, strop.Run):
        found.close()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(
    name: str, done: Path, lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is wrong; what is refused leaves nothing behind."""
    monkeypatch.chdir(tmp_path)
    outcomes, rng = Outcomes(), seeded(4)
    usual = ARGUMENTS[name] | {
        key: value
        for key, value in (
            ("model", str(lab.model)), ("source", str(lab.model if name == "evaluate" else done)),
            ("run", str(done)), ("folder", str(tmp_path / "made")), ("run_of_plan", str(done)),
        )
        if key in ARGUMENTS[name] or (name, key) == ("plan", "run_of_plan")
    }  # fmt: skip
    with graders_copied():
        if name != "compare":  # every one of its runs takes seconds
            outcomes.of(called, name, dict(usual))
        for _ in tries(OFTEN.get(name, 30)):
            for made in ("out", "made", "runs", "comparisons"):
                shutil.rmtree(tmp_path / made, ignore_errors=True)
            before = sum(outcomes.refused.values())
            key = rng.choice([key for key in usual if key != "run_of_plan"])
            outcomes.of(called, name, {**usual, key: wrong(rng)})
            if sum(outcomes.refused.values()) > before:
                assert not [path.name for path in tmp_path.iterdir()], (key, outcomes.refused)
            for path in tmp_path.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    outcomes.fine["called"] += 1  # where all of them are refused
    outcomes.check()


def read(path: Path) -> None:
    for prompt in load_data([str(path)], validation=1).train:
        assert prompt


def test_folders_of_datasets(tmp_path: Path) -> None:
    outcomes, rng = Outcomes(), seeded(5)
    rows = datasets.Dataset.from_list(ROWS)
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=rows, test=rows).save_to_disk(tmp_path / "several")
    for number in tries(40):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / ("one" if number % 2 else "several"), folder)
        if number > 1:
            path = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
            path.write_bytes(damaged(path.read_bytes(), rng))
        outcomes.of(read, folder if number % 2 else folder / "train")
        outcomes.of(read, folder)
        shutil.rmtree(folder)
    outcomes.check()


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer(lambda path, query: Reply(f"{path} {query}"), 0) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def test_what_no_browser_sends(server: LocalServer, capfd: pytest.CaptureFixture[str]) -> None:
    """Each gets a reply or a closed connection; the server goes on and prints nothing."""
    rng = seeded(6)
    place = f"http://127.0.0.1:{server.server_port}"
    usual = f"GET /{server.token}/?a=1 HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n"
    words = ("http://[", "//[", "http://[::1", "*", "?a=%", "#", "%00", "/\x7f", *TEXTS)
    for number in tries(60):
        text = f"GET {rng.choice(words)} HTTP/1.1\r\nHost: {rng.choice((place, *TEXTS))}\r\n\r\n"
        data = text.encode("utf-8", "surrogatepass") if number % 2 else usual.encode()
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as asking:
            asking.sendall(damaged(data, rng) if number % 2 == 0 else data)
            asking.shutdown(socket.SHUT_WR)
            asking.recv(12)
    asked = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    asked.request("GET", f"/{server.token}/?a=1")
    assert asked.getresponse().status == 200
    assert capfd.readouterr().err.splitlines() == []
