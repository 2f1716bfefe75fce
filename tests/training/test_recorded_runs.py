"""Runs on recorded rollouts: the gradient as where they were sampled, and files to the end."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from builders import flat_batch
from models import Lab, exact_norms
from runs import Runner, world_of
from short_runs import first_step, of_traces
from torch import Tensor

from strop.api.inference import open_model, scored
from strop.batch.batch import Batch
from strop.inspection.data import read_step
from strop.method.services import Graded
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.support.errors import UserError
from strop.traces.reading import row_of
from strop.traces.records import Rollout, TurnRecord
from strop.training.services import run as services
from strop.training.services.run import RunGrading
from strop.training.settings import config


def stepped(lab: Lab, raw: dict[str, Any]) -> tuple[Batch, list[Tensor], dict[str, float]]:
    """The batch of a first step, the gradient that it gave the optimiser, and its metrics."""
    raw["model"] = {"name": str(lab.model), "dtype": "float64"}
    found, gradient = first_step(raw)
    return found.batch, gradient, found.metrics


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


# The last one reads the recorded log-probabilities: it divides by them.
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


def opened(lab: Lab, recipe: str = "grpo", **sections: Any) -> Any:
    """What a run on recorded rollouts begins with, before its first step."""
    raw = {**lab.raw(recipe), **of_traces(lab)}
    raw["algorithm"] = {}
    for name, section in sections.items():
        raw[name] = {**raw.get(name, {}), **section}
    _, world = world_of(raw)
    world.services.close()
    return world


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab.make(tmp_path_factory.mktemp("lab"))


@pytest.mark.parametrize(
    ("recipe", "sections", "message"),
    [
        ("sft", {}, "sft has the rollout read_answers, which samples answers in its own way"),
        ("grpo", {"data": {"heldout_size": 2}}, "so none are held out for strop eval: leave out"),
        ("grpo", {"data": {"validation_size": 2}}, "validation samples answers, which nothing"),
        ("grpo", {"data": {"validation_size": 12}}, "leaves none of the 12 groups of"),
        ("grpo", {"data": {"task_config": {"a": 1}}}, "take no data.task_config"),
        ("grpo", {"reward": {"functions": ("exact_match",)}}, "answer"),
        ("grpo", {"data": {"task": "traces:"}}, "names no file"),
        ("spo_chain", {}, "grades texts as one answer, and rollouts of "),
        ("grpo", {"data": {"task": "countdown"}, "stages": {"rollout": "read_traces"}},
         "read_traces reads recorded rollouts, and countdown has none"),
    ],
)  # fmt: skip
def test_what_recorded_rollouts_cannot_do_is_refused(
    recipe: str, sections: dict[str, Any], message: str, lab: Lab
) -> None:
    with pytest.raises(UserError) as error:
        opened(lab, recipe, **sections)
    assert message in str(error.value)


def test_answers_sampled_beside_recorded_ones_need_a_reward_function(tmp_path: Path) -> None:
    lab = Lab.make(tmp_path)
    sampled, _, _ = stepped(lab, lab.raw("grpo", reward="even"))
    path = written(tmp_path / "traces.jsonl", as_recorded(sampled))
    raw = lab.raw("spo_chain", reward="even")
    raw |= {"data": {"task": f"traces:{path}"}, "reward": {}}
    with pytest.raises(UserError, match=r"beside the recorded rollouts.*give --reward"):
        stepped(lab, raw)


def test_functions_score_records_and_new_answers_to_what_is_set_aside(tmp_path: Path) -> None:
    lab, runner = Lab.make(tmp_path), Runner()
    raw = {**lab.raw("grpo", reward="even"), **of_traces(lab)}
    raw["reward"] = lab.raw("grpo", reward="even")["reward"]
    raw["data"] |= {"validation_size": 3, "validation_files": (f"more={lab.data}",)}
    raw["algorithm"] = {"sampling.num_prompts": 12}
    raw["training"] |= {"steps": 1, "rollouts_every": 1}
    raw["evaluation"] = {"every": 1, "num_samples": 4}
    run = runner.whole(raw, tmp_path / "run")
    task = run.world.services.task
    assert (len(task.train), len(task.validation)) == (9, 3)
    assert not {p.place for p in task.train} & {p.place for p in task.validation}
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for name in ("eval/validation/mean@n", "eval/more/mean@n"):
        assert 0 < lines[0][name] < 1
    table = pq.read_table(tmp_path / "run" / "rollouts" / "step-000001.parquet").to_pylist()
    assert len({row["uid"] for row in table}) == 9
    for row in table:
        even = sum(c.isdigit() for c in row["completion"]) % 2 == 0
        assert row["reward/even"] == even
        assert row["reward"] == row["reward/recorded"] + even
    assert all(row["scored"] for row in table)  # also where a record has no reward


def test_records_without_a_reward_need_a_function(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"turns": [{"prompt_ids": [3], "output_ids": [4]}]}\n', encoding="utf-8")
    data = {"task": f"traces:{path}"}
    with pytest.raises(UserError, match="has a reward, so nothing can be learned: add `reward`"):
        opened(lab, data=data)
    even = lab.raw("grpo", reward="even")["reward"]
    assert opened(lab, data=data, reward=even).services.task.own_reward == "recorded"


def test_nothing_is_collected_ahead(lab: Lab, tmp_path: Path) -> None:
    raw = {**lab.raw("grpo"), **of_traces(lab), "algorithm": {}}
    raw["training"] |= {"max_staleness": 1}
    with pytest.raises(UserError, match="read_traces samples nothing"):
        Runner().start(raw, tmp_path / "run")


def test_a_recipe_of_turns_reads_them_too(lab: Lab) -> None:
    assert opened(lab, "gigpo").services.task.own_reward == "recorded"


def test_a_group_that_does_not_fit_is_refused_or_left_out(lab: Lab, tmp_path: Path) -> None:
    def row(group: str, size: int, token: int = 3) -> dict[str, Any]:
        turn = {"prompt_ids": [token] * size, "output_ids": [4, 1]}
        return {"group": group, "reward": 1, "turns": [turn]}

    path = tmp_path / "t.jsonl"
    rows = [row("a", 5), row("b", 5), row("b", 63), row("c", 62)]  # the model's context is 64
    path.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    data = {"task": f"traces:{path}"}
    with pytest.raises(UserError, match=r"t\.jsonl line 3 has a call that reads and says 65 tok"):
        opened(lab, data=data)
    world = opened(lab, data={**data, "overlong": "drop"})
    assert [prompt.name for prompt in world.services.task.train] == ["group a", "group c"]
    assert any("2 groups of 1 to 1 recorded" in note for note in world.services.notes)
    assert any("1 of 3 rows of the split train" in note for note in world.services.notes)
    assert len(opened(lab, data={**data, "train_size": 1}).pool) == 1
    path.write_text(json.dumps(row("a", 5, 999)) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match="group a has the token 999, and the model knows 24"):
        opened(lab, data=data)


def test_prompts_are_shown_as_text(lab: Lab) -> None:
    texts = opened(lab).services.texts
    assert texts.prompt_text(0) == "0+"
    assert texts.prompt_ids(0) == (3, 13)
    assert len(texts.recorded(6)) == 3
    assert texts.recorded(0)[0].place.endswith("traces.jsonl line 1")


def test_a_step_without_any_score_goes_on(lab: Lab, tmp_path: Path) -> None:
    """Rollouts that failed long ago do not stop a run, as an environment that fails now does."""
    turn = {"prompt_ids": [3, 4], "output_ids": [5, 1]}
    path = tmp_path / "t.jsonl"
    lost = {"reward": 1.0, "exit": "environment_crash", "turns": [turn]}
    path.write_text(json.dumps(lost) + "\n", encoding="utf-8")
    raw = {**lab.raw("grpo"), "data": {"task": f"traces:{path}"}, "reward": {}}
    raw["algorithm"] = {"sampling.num_prompts": 1}
    raw["training"] |= {"steps": 1}
    run = Runner().whole(raw, tmp_path / "run")
    line = json.loads((run.record.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["rewards/frac_unscored"] == line["exit/environment_crash"] == 1


def test_a_checkpoint_answers_other_prompts(lab: Lab, tmp_path: Path) -> None:
    raw = {**lab.raw("grpo"), **of_traces(lab)}
    raw["algorithm"] = {"sampling.num_prompts": 2, "rollout.fork_threshold": 8}
    Runner().whole(raw, tmp_path / "run")
    source = str(tmp_path / "run")
    with pytest.raises(UserError, match="whose rewards say nothing of new answers"):
        open_model(source)
    with open_model(source, scored=False) as found:
        assert len(found.answer("1+", 3, 0)) == 3
    own = {"data": [str(lab.data)], "reward": ["exact_match"], "max_tokens": 6}
    with open_model(source, **own) as found:
        estimates = scored(found, "train", 3, 2, (1,), 0).estimates
    assert "pass@1" in estimates


@pytest.mark.parametrize("part", ["read_traces", "receive_traces"])
def test_new_answers_are_sampled_with_what_is_said_of_recorded_ones(part: str) -> None:
    raw = {
        "stages": {"rollout": f"{part}(temperature=0.5)"},
        "algorithm": {"rollout.max_tokens": 7},
    }
    sampled = SampleIndependently(max_tokens=7, temperature=0.5)
    assert config.make(raw).rollout().part == sampled


@pytest.mark.parametrize("own_reward", ["recorded", "episode"])
def test_answers_that_are_sampled_beside_recorded_ones_have_the_functions_score_alone(
    own_reward: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, zeros_B = flat_batch((1, 1)), torch.zeros(2)
    found = Graded(zeros_B[:, None], zeros_B + 3, zeros_B == 0, {}, zeros_B.long())
    monkeypatch.setattr(RunGrading, "_verified", lambda self, batch: found)
    with_own = found._replace(outcome_B=zeros_B + 4)
    monkeypatch.setattr(services, "with_episodes", lambda batch, verified: with_own)
    given: Any = (SimpleNamespace(own_reward=own_reward, environment=None), None, None, None)
    grading = RunGrading(*given)
    assert grading.grade(batch.set(reward_K=torch.ones(2))).outcome_B.tolist() == [4, 4]
    if own_reward == "recorded":
        assert grading.grade(batch).outcome_B.tolist() == [3, 3]
