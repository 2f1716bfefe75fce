"""Runs that receive rollouts while they train: from OpenAI's client, a folder, and after a kill."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import live_driver
import pyarrow.parquet as pq
import pytest
from commands import collectors_copied, launch
from openai import OpenAI, OpenAIError

import strop
from strop import UserError
from strop.serving.protocol import Refused
from strop.support.errors import RunStopped
from strop.traces.records import Rollout, TurnRecord
from strop.training.record.run_folder import Record
from strop.training.services import live as run_live
from strop.training.services.live import ADDRESS, PLANNED, Address, RunLive

SHORT = {"rollout_max_tokens": 6, "sampling_num_prompts": 2, "sampling_num_rollouts": 4,
         "training_steps": 2, "training_lr": 1e-3, "training_rollouts_every": 1,
         "evaluation_every": 0, "progress": False}  # fmt: skip


def steps_of(run: Path) -> list[dict[str, Any]]:
    """The log without what depends on the time, and without a line that is just being written."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    lines = [line for line in lines if line.endswith("\n")]
    apart = ("perf/", "timing_s/", "step_time", "services/", "asynchronous/", "traces/groups_w")
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith(apart)} for line in lines
    ]


def taken(run: Path) -> dict[int, list[float]]:
    """By step, the rollouts that it has trained on, as whoever posted them numbered them."""
    found: dict[int, list[float]] = {}
    for path in sorted((run / "rollouts").glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            found.setdefault(row["step"], []).append(row["recorded_number"])
    return found


def until(true: Callable[[], bool], said: Path, seconds: float = 150) -> None:
    last = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < last, said.read_text()
        time.sleep(0.02)


def test_a_run_that_is_killed_takes_every_rollout_once(lab: Any, here: Path) -> None:
    words = ["train", "grpo", "--model", str(lab.model), "data.task=traces:live",
             "rollout.max_tokens=4", "sampling.num_prompts=2",
             f"sampling.num_rollouts={live_driver.SIZE}",
             "training.steps=5", "training.lr=1e-3", "training.save_every=2",
             "training.rollouts_every=1", "evaluation.every=0", "--out", "run"]  # fmt: skip
    run, said = here / "run", here / "said"
    process = launch(words, said, folder=here)
    until((run / "serving.json").exists, said)
    address = (run / "serving.json").read_text()
    assert os.stat(run / "serving.json").st_mode & 0o077 == 0
    driver = subprocess.Popen([sys.executable, live_driver.__file__, str(run)])
    try:
        until(lambda: len(steps_of(run)) >= 3, said)
        os.kill(process.pid, 9)
        process.join()
        before, first = steps_of(run), taken(run)
        process = launch(["train", "--resume", "run"], said, folder=here)
        process.join(150)
        assert process.exitcode == 0, said.read_text()
        assert driver.wait(30) == 0
    finally:
        driver.kill()
    after = steps_of(run)
    assert [line["step"] for line in after] == [1, 2, 3, 4, 5]
    assert after[: len(before)] == before  # the third one was trained again, on the same rollouts
    again = taken(run)
    assert {step: again[step] for step in first} == first
    posted = [json.loads(line) for line in (run / "posted.jsonl").read_text().splitlines()]
    numbers = [row["rewards"]["number"] for row in posted]
    assert len(set(numbers)) == len(numbers)
    used = [number for step in sorted(again) for number in again[step]]
    assert used == numbers[: len(used)]  # none lost, none twice, in the order in which they came
    assert len(used) == 5 * 2 * live_driver.SIZE
    assert json.loads((run / "serving.json").read_text()) == json.loads(address)


def played(run: Any, play: Callable[[OpenAI, Any], None]) -> list[BaseException]:
    """Train a run while a thread drives it; what that raised."""
    policy, errors = strop.serve_policy(run), list[BaseException]()

    def drive() -> None:
        try:
            with OpenAI(base_url=f"{policy.url}/v1", api_key=policy.key) as client:
                play(client, policy)
        except BaseException as error:
            errors.append(error)
            run.stop()

    thread = threading.Thread(target=drive)
    thread.start()
    run.train()
    thread.join()
    return errors


def turn(choice: Any, **more: Any) -> dict[str, Any]:
    return {"prompt_ids": choice.prompt_token_ids, "output_ids": choice.token_ids, **more}


def test_a_loop_of_ones_own_drives_a_run_and_hears_what_is_wrong(lab: Any, here: Path) -> None:
    reward = here / "rewards.py"
    reward.write_text(
        "def short(completions, **columns):\n    return [len(c) for c in completions]\n"
    )
    run = strop.train(
        "grpo", model=str(lab.model), task="traces:live", reward=f"{reward}:short", start=False,
        validation=str(lab.data), **{**SHORT, "evaluation_every": 2, "evaluation_num_samples": 2},
    )  # fmt: skip
    answers: dict[str, Any] = {}

    def play(client: OpenAI, policy: Any) -> None:
        headers = {"Authorization": f"Bearer {policy.key}"}
        ask = {"model": policy.model, "max_tokens": 3, "extra_body": {"return_token_ids": True}}

        def post(body: Any, **more: str) -> Any:
            where = f"{policy.url}/v1/rollouts"
            return httpx2.post(where, json=body, headers={**headers, **more}, timeout=60)

        def drawn(prompt: str, n: int) -> Any:
            return client.completions.create(prompt=prompt, n=n, **ask)

        old = drawn("9+", 1)
        row = {"group": "g", "reward": 0.5, "turns": [turn(old.choices[0])]}
        far = {**row, "turns": [{"prompt_ids": [3] * 70, "output_ids": [4], "versions": [0]}]}
        answers["key"] = httpx2.post(f"{policy.url}/v1/rollouts", json=row)
        answers["json"] = httpx2.post(
            f"{policy.url}/v1/rollouts", content=b"{", headers={**headers}
        )
        answers["empty"] = post({"rollouts": []})
        answers["slip"] = post({"rollouts": [row], "complet": True})
        answers["format"] = post({"rollouts": [row, {"text": "no ids"}]})
        answers["unknown"] = post({**row, "turns": [{"prompt_ids": [3], "output_ids": [4]}]})
        answers["future"] = post(
            {**row, "turns": [{"prompt_ids": [3], "output_ids": [4], "versions": [7]}]}
        )
        answers["long"] = post(far)
        answers["letter"] = post(
            {**row, "turns": [{"prompt_ids": [999], "output_ids": [4], "versions": [0]}]}
        )
        answers["get"] = httpx2.get(f"{policy.url}/v1/rollouts", headers=headers)
        for number, prompt in enumerate(("1+2=", "3+", "5*", "7=")):
            said = drawn(prompt, 4)
            answers[f"version {number}"] = said.weights_version
            rows = [
                {"turns": [turn(c)], "reward": None if n == 3 else n / 2}
                for n, c in enumerate(said.choices)
            ]
            body = {"group": prompt, "rollouts": rows}
            response = post(body, **{"Idempotency-Key": prompt})
            assert response.status_code == 200, response.text
            if number == 0:  # after the last post the run may end before another one arrives
                answers["again"] = post(body, **{"Idempotency-Key": prompt})
            if number == 1:
                answers["stale"] = post(row)
                while answers["stale"].status_code == 429:  # until the step has taken its groups
                    time.sleep(0.1)
                    answers["stale"] = post(row)

    assert played(run, play) == []
    statuses = {name: got.status_code for name, got in answers.items() if hasattr(got, "text")}
    assert statuses == {
        "key": 401, "json": 400, "empty": 400, "slip": 400, "format": 422, "unknown": 422,
        "future": 409, "long": 422, "letter": 422, "again": 200, "stale": 409, "get": 200,
    }  # fmt: skip
    codes = {name: answers[name].json()["error"]["code"] for name in ("format", "unknown", "stale")}
    assert codes == {
        "format": "unreadable_rollout", "unknown": "unknown_version", "stale": "stale_rollout"
    }  # fmt: skip
    assert answers["format"].json()["error"]["param"] == "rollouts[1]"
    assert "did you mean complete" in answers["slip"].text
    assert "step 2 takes none older than version 1" in answers["stale"].text
    assert all(each["repeated"] for each in answers["again"].json()["data"])
    assert [answers[f"version {n}"] for n in range(4)] == [0, 0, 1, 1]
    lines = [json.loads(x) for x in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert lines[0]["eval/validation/mean@n"] > 0
    assert lines[1]["rewards/recorded/mean"] == 0.375
    assert lines[1]["rewards/short/mean"] > 0
    assert lines[1]["turns/scored_here"] == 0
    assert lines[1]["sampling/sampling_logp_difference/mean"] < 1e-5
    rows = pq.read_table(run.folder / "rollouts" / "step-000002.parquet").to_pylist()
    assert [row["prompt"] for row in rows] == ["5*"] * 4 + ["7="] * 4
    assert {row["exit"] for row in rows} <= {"done", "token_limit"}


def test_ctrl_c_ends_a_run_for_which_nothing_comes(lab: Any, here: Path) -> None:
    run = strop.train("grpo", model=str(lab.model), task="traces:live", start=False, **SHORT)
    threading.Timer(0.5, run.stop).start()
    run.train()
    assert run.steps_done == 0
    run.close()
    with pytest.raises(
        UserError, match=r"has no serving\.json: only runs with data.task=traces:li"
    ):
        strop.serve_policy(here)


def test_a_folder_is_watched_and_a_process_that_collects_takes_in_too(lab: Any, here: Path) -> None:
    with collectors_copied():
        run = strop.train(
            "grpo", model=str(lab.model), task="traces:queue:drop", start=False,
            training_max_staleness=1, **SHORT,
        )  # fmt: skip
        drop = here / "drop"

        def play(client: OpenAI, policy: Any) -> None:
            said = said_by(client, policy)
            for number in range(4):
                rows = [{"group": f"g{number}", "reward": n / 3, "turns": [turn(c)]}
                        for n, c in enumerate(said.choices)]  # fmt: skip
                text = "".join(json.dumps(row) + "\n" for row in rows)
                (drop / f".{number}").write_text(text)
                (drop / f".{number}").rename(drop / f"{number}.jsonl")

        assert played(run, play) == []
    assert [line["step"] for line in steps_of(run.folder)] == [1, 2]
    assert sorted(path.name for path in (drop / "taken").iterdir()) == [
        f"{number}.jsonl" for number in range(4)
    ]
    run.close()


def said_by(client: OpenAI, policy: Any) -> Any:
    """Four answers, once the process that draws is there."""
    last = time.monotonic() + 100
    while True:
        try:
            return client.completions.create(
                model=policy.model, prompt="1+", n=4, max_tokens=3,
                extra_body={"return_token_ids": True},
            )  # fmt: skip
        except OpenAIError:
            assert time.monotonic() < last
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "traces:queue:"}, "names no folder: give traces:queue:FOLDER"),
        ({"task": f"traces:queue:{__file__}/drop"}, "the folder .*drop cannot be used"),
        ({"data_task_config": {"prot": 1}}, "has no option 'prot'"),
        ({"data_task_config": {"port": "80"}}, "port is '80': give a whole number"),
        ({"data_validation_size": 3}, "traces:live has no prompts of its own"),
        ({"validation": [{"prompt": "1+"}]}, "answers, which nothing scores: give a reward"),
        ({"recipe": "sft"}, "which samples answers in its own way, and posted rollouts"),
        ({"task": "countdown", "rollout": "receive_traces"}, "and countdown has none"),
    ],
)
def test_what_cannot_be_is_refused(
    lab: Any, here: Path, options: dict[str, Any], message: str
) -> None:
    given: dict[str, Any] = {"recipe": "grpo", "task": "traces:live", **SHORT, **options}
    with pytest.raises((UserError, RunStopped), match=message):
        strop.train(model=str(lab.model), out="run", **given)
    assert not Path("run").exists()


def test_an_address_in_use_leaves_no_run(lab: Any, here: Path) -> None:
    """Nor what was posted to a run that made no step: another one would take it in."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        options = {"data_task_config": {"port": other.getsockname()[1]}, "out": "run", **SHORT}
        with pytest.raises(UserError, match="in use"):
            strop.train("grpo", model=str(lab.model), task="traces:live", **options)
    assert not Path("run").exists()
    for name in ("posted.jsonl", "serving.json", ".serving.json"):
        Path("run").mkdir()
        Path("run", name).touch()
        with pytest.raises(UserError, match=f"has its own {name}"):
            Record(Path("run")).check_free()
        Record(Path("run")).discard()
        assert not Path("run").exists()


@pytest.mark.parametrize(("begin", "name"), [("prepare", ADDRESS), ("open", PLANNED)])
def test_a_kill_while_the_address_is_written_leaves_the_earlier_one(
    begin: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = SimpleNamespace(start=lambda: None, url="http://127.0.0.1:4567", key="key")
    texts = SimpleNamespace(tokenizer=None, chat=None, limits=SimpleNamespace(context_tokens=9))
    source = SimpleNamespace(host="127.0.0.1", port=0, folder="")
    live = RunLive(source, texts, lambda: 1)
    live._announced(tmp_path / name, Address(server.url, server.key))

    def killed(*_: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(run_live, "PolicyServer", lambda *_, **__: server)
    monkeypatch.setattr(run_live, "write_whole", killed)
    with pytest.raises(InterruptedError):
        getattr(live, begin)(tmp_path)
    assert live._address(tmp_path) == Address(server.url, server.key)


def told(said: tuple[int, ...] = (3, 8), versions: tuple[int, ...] = (3, 4)) -> TurnRecord:
    return TurnRecord(prompt_ids=(1, 2), output_ids=said, versions=versions)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (told(versions=(5, 4)), "tokens of version 5, and the weights are at version 4"),
        (told(versions=(4, -1)), "tokens of version -1, .* version 4: this run has not drawn it"),
        (told(versions=()), "does not say which weights drew its tokens"),
        (told((3, 4, 5), (4, 4, 4)), "reads and says 5 tokens, and the context is 4"),
        (told((3, 9)), "has the token 9, and the model knows 9"),
    ],
)
def test_a_rollout_is_taken_in_up_to_the_newest_weights_and_the_last_token(
    wrong: TurnRecord, words: str
) -> None:
    live = RunLive.__new__(RunLive)
    live.drawn = SimpleNamespace(complete=lambda turn: turn)
    live.texts = SimpleNamespace(limits=SimpleNamespace(context_tokens=4), num_tokens=9)
    live.version = lambda: 4
    own = Rollout((told(),), reward=1.0, place="line 1")
    assert live.complete(own, "row") == Rollout((told(),), reward=1.0)
    with pytest.raises(Refused, match=f"row turn 2 .*{words}"):
        live.complete(Rollout((told(), wrong)), "row")
