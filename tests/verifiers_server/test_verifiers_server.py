"""Training on tasks that an EnvServer of verifiers plays, with its own harness."""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from models import Lab, save_data, save_model
from scripted_model import TEMPLATE, scripted_tokenizer

import strop
from strop import UserError

PYTHON = os.environ.get("STROP_VERIFIERS_PYTHON", "")
SHORT = {"rollout_max_tokens": 6, "sampling_num_prompts": 2, "sampling_num_rollouts": 4,
         "training_steps": 2, "training_lr": 1e-3, "training_rollouts_every": 1,
         "evaluation_every": 0, "progress": False}  # fmt: skip


@contextmanager
def serving(harness: str, said: Path) -> Iterator[str]:
    """An EnvServer, in its own environment: its address."""
    search = f"{Path(PYTHON).parent}:{os.environ['PATH']}"  # uv may lie beside it
    command = [PYTHON, str(Path(__file__).with_name("server.py")), harness]
    with said.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env={**os.environ, "PATH": search, "PYTHONPATH": ""}
        )
    try:
        last = time.monotonic() + 150
        while not (found := re.search(r"tcp://\S+", said.read_text())):
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < last, said.read_text()
            time.sleep(0.1)
        yield found[0]
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A random model with letters, a chat template and room for a conversation."""
    folder = tmp_path_factory.mktemp("verifiers")
    letters = scripted_tokenizer(("ok",), TEMPLATE)
    return Lab(save_model(folder / "model", context=512, ours=letters), *save_data(folder))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving("digits_v1", tmp_path_factory.mktemp("server") / "said") as found:
        yield found


def trained(lab: Lab, address: str, rows: list[dict[str, Any]], **options: Any) -> Any:
    return strop.train(
        "grpo", model=str(lab.model), task=f"verifiers:{address}", data=rows,
        **{**SHORT, **options},
    )  # fmt: skip


def rollouts(run: Any, step: int = 1) -> list[dict[str, Any]]:
    path = run.folder / "rollouts" / f"step-{step:06d}.parquet"
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def test_a_task_is_played_and_trained(
    lab: Lab, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"say {number}"} for number in range(2)]
    run = trained(lab, address, rows)
    for row in rollouts(run, 1) + rollouts(run, 2):
        turns = json.loads(row["turns"])
        assert len(turns) == 2
        even = sum(c.isdigit() for c in turns[1]["action"].strip()) % 2 == 0
        assert row["reward"] == row["recorded_even"] == 2.0 * even
        assert row["recorded_turns"] == 2
        assert row["exit"] in ("done", "token_limit")
    lines = [json.loads(x) for x in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[1]["grad_norm"] > 0
    assert lines[1]["sampling/sampling_logp_difference/mean"] < 1e-5
    tokens = pq.read_table(run.folder / "tokens" / "step-000002.parquet").to_pylist()
    said = torch.tensor(
        [v for row in tokens for v, m in zip(row["version_T"], row["mask_T"], strict=True) if m]
    )
    assert set(said.tolist()) == {1}


def test_every_end_has_its_cause(
    lab: Lab, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": "a", "fails": "reward"}, {"prompt": "b", "fails": "harness"},
            {"prompt": "c", "fails": ""}, {"prompt": "d", "artifacts": "none"}]  # fmt: skip
    run = trained(
        lab, address, rows, sampling_num_prompts=4, sampling_num_rollouts=1, training_steps=1
    )
    found = {row["prompt"]: row for row in rollouts(run)}
    causes = {name[-1]: (row["exit"], row["scored"]) for name, row in found.items()}
    assert causes["a"] == ("exception", True)
    assert causes["b"] == ("exception", True)
    assert causes["c"][1]
    assert causes["d"] == ("environment_crash", False)
    whys = {name[-1]: row["exit_why"] for name, row in found.items()}
    assert "no reward for it" in whys["a"]
    assert "the harness broke" in whys["b"]
    assert "refused it" in whys["d"]


def test_verifiers_own_harness_plays(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`null`, a program that verifiers has uv install when it is first used."""
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"say {number}"} for number in range(2)]
    with serving("null", tmp_path / "said") as address:
        run = trained(lab, address, rows, training_steps=1, sampling_num_rollouts=2)
    for row in rollouts(run):
        assert row["exit"] in ("done", "token_limit"), row["exit_why"]
        assert len(json.loads(row["turns"])) == 1
        assert row["reward"] in (0.0, 2.0)


@pytest.mark.parametrize(
    ("task", "rows", "options", "message"),
    [
        ("verifiers:tcp://127.0.0.1:9", None, {}, "plays tasks that you give: the rows of data="),
        ("verifiers:here", [{"prompt": "a"}], {}, "give an address, verifiers:tcp://127"),
        ("verifiers:tcp://127.0.0.1:9", [{"prompt": "a"}], {"rendrer": 1}, "no option 'rendrer'"),
        ("verifiers:tcp://127.0.0.1:9", [{"prompt": "a"}], {}, "no server of verifiers answers at"),
    ],
)
def test_what_cannot_be_is_refused(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str,
    rows: list[dict[str, Any]] | None, options: dict[str, Any], message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("strop.environments.verifiers_server.START_SECONDS", 0.5)
    with pytest.raises(UserError, match=message):
        strop.train("grpo", model=str(lab.model), task=task, data=rows, data_task_config=options,
                    **SHORT)  # fmt: skip
