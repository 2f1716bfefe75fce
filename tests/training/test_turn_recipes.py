"""Recipes over turns, trained for two steps in small environments."""

import json
import math

import pytest
from runs import Runner

from strop.tracking.metrics_file import read_metrics

TRAINING = {"steps": 2, "lr": 1e-3, "save_every": 0, "rollouts_every": 0, "token_budget": 512}
STEPS = [{"observation": "1,2,3:4-1=", "action": digit} for digit in "123"]


def trained(folder, recipe, task, task_config, **algorithm):
    options = {"sampling.num_prompts": 3, "sampling.num_rollouts": 4, **algorithm}
    raw = {
        "recipe": recipe, "model": {"name": "tiny"}, "training": TRAINING, "algorithm": options,
        "data": {"task": task, "task_config": task_config, "train_size": 6, "validation_size": 2},
        "evaluation": {"every": 0},
    }  # fmt: skip
    Runner().whole(raw, folder / "run")
    lines = [line for line in read_metrics(folder / "run") if line["step"] > 0]
    assert len(lines) == 2
    assert all(value is not None and math.isfinite(value) for x in lines for value in x.values())
    assert any(line.get("grad_norm", 0) > 0 for line in lines)
    return lines


@pytest.mark.parametrize("recipe", ["matchtir", "matchtir(matching='soft', fusion='sum')"])
def test_calls_of_the_calculator_are_matched(recipe, tmp_path):
    lines = trained(tmp_path, recipe, "calculator", {})
    # the tiny model calls the calculator now and then, so more is earned than the answers are worth
    assert any(line["reward"] > line["rewards/environment/mean"] for line in lines)


@pytest.mark.parametrize(
    "recipe", ["igpo", "igpo(variant='code')", "igpo(variant='separate')", "infopo"]
)
def test_scored_contexts_are_counted(recipe, tmp_path):
    lines = trained(tmp_path, recipe, "calculator", {})
    assert all(line["services/tokens_scored"] > 0 for line in lines)


def test_states_that_look_alike_are_one(tmp_path):
    equal, alike = (
        trained(
            tmp_path / each,
            f"gigpo(similarity_threshold={each}, invalid_penalty=0.1)",
            "corridor",
            {"style": "compact"},
        )
        for each in ("0.0", "0.7")  # `:21=` and `:22=` are alike by 3 tokens of 4
    )
    # of the same rollouts, for nothing has been learned before the first step
    assert alike[0]["turns/peers_state"] > equal[0]["turns/peers_state"] + 1


REWRITTEN = {"earlier": "{observation}{action}\n"}
GROWING = {"rewrites": False, "patch": ":{action}"}


@pytest.mark.parametrize(("variant", "contexts"), [("code", REWRITTEN), ("paper", GROWING)])
def test_recorded_trajectories(variant, contexts, tmp_path):
    file = tmp_path / "expert.jsonl"
    file.write_text((json.dumps({"steps": STEPS}) + "\n") * 6, encoding="utf-8")
    config = {"file": str(file), "max_action_tokens": 1, **contexts}
    recipe = f"ui_s1_semi_online(variant='{variant}', eta=0.01)"
    warm = {"rollout.temperature": 2.0}  # so that actions differ
    lines = trained(tmp_path, recipe, "strop.environments.replay:Replay", config, **warm)
    assert all("data/dropped/uniform_start" in line for line in lines)


def test_reminders_and_an_extension(tmp_path):
    limits = {"rollout.max_turns": 2, "rollout.extension": 1, "rollout.reminder": ":{left}="}
    lines = trained(tmp_path, "trloo", "hidden_number", {}, **limits)
    assert all(line["episode/turns_max"] == 3 for line in lines)
    assert all(line["episode/truncated_fraction"] > 0 for line in lines)
    assert all(line["episode/tokens_mean"] > line["completions/mean_length"] for line in lines)


def test_blocks_of_a_turn_are_credited_apart(tmp_path):
    inner = {"environment": "hidden_number", "options": {"style": "compact"}}
    config = {**inner, "tags": ["*", "/"], "max_tokens": 8, "instruction": ""}
    tags = "switch_tags=('(', ')'), subgoal_tags=('+', '-'), action_tags=('*', '/'), keep=('0',)"
    warm = {"rollout.temperature": 2.0}  # so that some blocks are written
    block = "strop.environments.action_block:ActionBlock"
    lines = trained(tmp_path, f"hiper_hae({tags})", block, config, **warm)
    assert any(line["selection/dropped/unmarked_token"] > 0 for line in lines)
    assert all(line["critic/low/return_mean"] < 0 for line in lines)  # kept, and not understood
