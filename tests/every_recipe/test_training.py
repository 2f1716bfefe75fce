"""Every recipe trains, and a step does not depend on how its rows are split into micro-batches."""

import json
import math

import pytest
from models import Lab
from runs import Runner

from strop import catalogue, notation
from strop.training.record import read_metrics
from strop.training.setup import given_answers

NAMES = [entry.name for entry in catalogue.recipes()]
# 1 where an even number of digits was written; what it measures is there for recipes that ask.
REWARD = """
def even(completions, log_extra, **columns):
    digits = [sum(c.isdigit() for c in text) for text in completions]
    log_extra("speedup", [1 + n / 4 for n in digits])
    log_extra("profiled", [min(0.2 + n / 4, 1.0) for n in digits])
    log_extra("flaw", [n if n % 4 == 0 else -1 for n in digits])
    log_extra("decoy", [n == 5 for n in digits])
    return [float(n % 2 == 0) for n in digits]
"""
# The same over two turns, for recipes that play episodes; with a call and an answer to judge by.
EPISODES = """
from strop.tasks.environment import Environment, Observation
from strop.tasks.tool_calls import Call


class Even(Environment):
    max_turns, max_tokens, reward_range = 2, 3, (0.0, 1.0)

    def reset(self, seed):
        self.turn, self.start = 0, seed % 7
        return Observation(f"{self.start}+{3 * seed % 5}:", state=str(self.start))

    def step(self, action):
        self.turn += 1
        even = sum(c.isdigit() for c in action) % 2 == 0
        return Observation(f"={self.turn}:", reward=even / 2, done=self.turn == 2,
                           state=f"{self.start},{self.turn}", valid=len(action) > 1, match=even)

    def columns(self):
        return {"answer": str(self.start), "reference_calls": [{"name": "count", "arguments": {}}]}

    def calls(self, action):
        return [Call("count", {})] if any(c.isdigit() for c in action) else []
"""
# Recipes for several players, and the games that they train in.
GAMES = {"mars": "open_spiel", "advevo_public_baseline": "hide_and_guess"}
# What depends on the machine, or on the split itself.
APART = ("timing_s/", "perf/", "step_time")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Prompts with a demonstration each; about half of the answers are right."""
    lab = Lab.make(tmp_path_factory.mktemp("lab"))
    rows = [{"prompt": f"{n}+{3 * n % 7}:", "answer": str(n), "completion": f"={n}",
             "set": n // 2,
             "chosen": f"={n}", "rejected": f"={n + 1}+1"} for n in range(12)]  # fmt: skip
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    lab.rewards.write_text(REWARD, encoding="utf-8")
    return lab


def trained(lab, recipe, folder, token_budget, steps=2):
    """The metrics of a few steps."""
    training = {"steps": steps, "save_every": 0, "rollouts_every": 0, "token_budget": token_budget}
    raw = lab.raw(recipe, reward="even", training=training)
    raw["algorithm"]["sampling.num_prompts"] = 3
    for path in notation.recipe(recipe).paths():
        if path.endswith(".warmup_steps"):  # two steps have no room for a warm-up
            raw["algorithm"][path] = 0
    if given := given_answers(notation.recipe(recipe).rollout.part):
        raw["algorithm"]["sampling.num_rollouts"] = len(given)
    if recipe in GAMES:
        config = {"style": "compact"}
        raw["data"] = {"task": GAMES[recipe], "task_config": config, "train_size": 12,
                       "validation_size": 2}  # fmt: skip
        raw["reward"] = {}
    elif "plays_turns" in notation.recipe(recipe).facts():
        episodes = lab.data.parent / "episodes.py"
        episodes.write_text(EPISODES, encoding="utf-8")
        raw["data"] = {"task": f"{episodes}:Even", "train_size": 12, "validation_size": 2}
        raw["reward"] = {}
    runner = Runner()
    runner.whole(raw, folder)
    return [line for line in read_metrics(folder) if line["step"] > 0]


@pytest.mark.parametrize("recipe", NAMES)
def test_two_steps_in_small_and_in_large_micro_batches(recipe, lab, tmp_path):
    small = trained(lab, recipe, tmp_path / "small", 32)
    large = trained(lab, recipe, tmp_path / "large", 4096)
    assert [line["step"] for line in small] == [1, 2]
    for line in small:
        assert all(value is not None and math.isfinite(value) for value in line.values())
    assert any(line["grad_norm"] > 0 for line in small)
    assert small[0].keys() == large[0].keys()
    for name, value in small[0].items():
        if not name.startswith(APART):
            assert value == pytest.approx(large[0][name], rel=2e-3, abs=2e-5), name


@pytest.mark.parametrize("recipe", NAMES)
def test_twenty_steps_stay_finite(recipe, lab, tmp_path):
    lines = trained(lab, recipe, tmp_path / "run", 4096, steps=20)
    assert [line["step"] for line in lines] == list(range(1, 21))
    for line in lines:
        assert all(value is not None and math.isfinite(value) for value in line.values())
