"""Runs on recorded rollouts: the same gradient as where they were sampled, and files to the end."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from models import Lab, exact_norms
from runs import Runner
from short_runs import of_traces
from torch import Tensor

from strop.batch.batch import Batch
from strop.inspection.data import read_step
from strop.support.errors import UserError
from strop.traces.reading import row_of
from strop.traces.records import Rollout, TurnRecord
from strop.training.loading import load_model
from strop.training.settings import config
from strop.training.setup import load_prompts, make_world
from strop.training.step import train_step


def stepped(lab: Lab, raw: dict[str, Any]) -> tuple[Batch, list[Tensor], dict[str, float]]:
    """The batch of a first step, the gradient that it gave the optimiser, and its metrics."""
    raw["model"] = {"name": str(lab.model), "dtype": "float64"}
    made = config.make(raw)
    algorithm = made.build()
    task = load_prompts(made.data, made.reward, made.seed)
    world = make_world(made, algorithm, load_model(made), task)
    try:
        found = train_step(world, algorithm, {}, 1)
        optimiser = world.policy.optimiser
        assert optimiser is not None
        moments = [state["exp_avg"].clone() for state in optimiser.state.values()]
    finally:
        world.services.close()
    return found.batch, moments, found.metrics


def as_recorded(batch: Batch) -> list[Rollout]:
    """The rollouts of a batch of answers, as somebody would have recorded them."""
    found = []
    for row in range(batch.size("B")):
        own_T = batch["rollout_T"] == row
        said_T = own_T & batch["mask_T"]
        turn = TurnRecord(
            tuple(batch["id_T"][own_T & ~batch["mask_T"]].tolist()),
            tuple(batch["id_T"][said_T].tolist()),
            tuple(batch["logp_behavior_T"][said_T].tolist()),
            versions=tuple(batch["version_T"][said_T].tolist()),
            ended="length" if batch["truncated_B"][row] else "stop",
        )
        group = str(int(batch["uid_P"][batch["group_B"][row]]))
        found.append(Rollout((turn,), float(batch["outcome_B"][row]), group))
    return found


def written(path: Path, rollouts: list[Rollout]) -> Path:
    path.write_text("".join(json.dumps(row_of(each)) + "\n" for each in rollouts), encoding="utf-8")
    return path


# The last reads the recorded log-probabilities: it divides by them.
@pytest.mark.parametrize("recipe", ["grpo", "rollout_correction"])
def test_the_gradient_is_that_of_the_answers_where_they_were_sampled(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact_norms(monkeypatch)
    lab = Lab.make(tmp_path)
    raw = lab.raw(recipe, reward="even")
    raw["algorithm"] |= {"sampling.num_prompts": 4}
    sampled, expected, before = stepped(lab, raw)
    raw = lab.raw(recipe, reward="even")
    path = written(tmp_path / "traces.jsonl", as_recorded(sampled))
    raw |= {"data": {"task": f"traces:{path}"}, "reward": {}}
    raw["algorithm"] = {"sampling.num_prompts": sampled.size("P")}
    batch, found, metrics = stepped(lab, raw)
    assert batch.size("B") == sampled.size("B")
    assert metrics["reward"] == before["reward"]
    assert max(float(each.abs().max()) for each in expected) > 1e-5
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_a_run_goes_on_in_the_middle(tmp_path: Path) -> None:
    lab, runner = Lab.make(tmp_path), Runner()
    raw = {**lab.raw("grpo"), **of_traces(lab)}
    raw["algorithm"] = {"sampling.num_prompts": 3}
    whole = runner.whole(raw, tmp_path / "whole")
    half = runner.start(raw, tmp_path / "half")

    def leave(run: Any) -> None:
        run.stop_asked = run.done == 1

    runner.go(half, leave)
    gone_on = runner.resume(tmp_path / "half")
    runner.go(gone_on)
    for one, other in zip(whole.loaded.model.parameters(), gone_on.loaded.model.parameters(),
                          strict=True):  # fmt: skip
        assert torch.equal(one, other)
    file = lab.data.parent / "traces.jsonl"
    file.write_text(file.read_text().replace('"reward": 1', '"reward": 2', 1), encoding="utf-8")
    with pytest.raises(UserError, match=r"the train data is not what .* was started with"):
        runner.resume(tmp_path / "half", training={"steps": 9})


def test_files_of_the_run_show_contexts_and_turns(tmp_path: Path) -> None:
    lab = Lab.make(tmp_path)
    raw = {**lab.raw("grpo"), **of_traces(lab)}
    raw["training"] |= {"inspect": 64}
    raw["algorithm"] = {"sampling.num_prompts": 12}
    Runner().whole(raw, tmp_path / "run")
    shown = read_step(tmp_path / "run")
    assert len(shown.rollouts) == 21
    parted = [each for each in shown.rollouts if len(each["turns"]) == 2]
    assert len(parted) == 21
    sizes, contexts = [each["size"] for each in shown.rollouts], shown.columns["sequence_T"]
    own = torch.split(torch.tensor(contexts), sizes)
    assert {len(set(each.tolist())) for each in own} == {1, 2}
    table = pq.read_table(tmp_path / "run" / "rollouts" / "step-000003.parquet").to_pylist()
    turns = {len(json.loads(row["turns"])) for row in table}
    assert turns == {2}
    first = json.loads(table[0]["turns"])[0]
    assert first["observation"] == table[0]["prompt"]
    assert table[0]["completion"].startswith(first["action"])
