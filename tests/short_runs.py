"""A short run of any recipe, with the data, task and settings that it needs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from commands import Strop
from models import Lab, save_model, without_times
from runs import Runner, world_of
from torch import Tensor

from strop.method import notation
from strop.method.cost import needs_of
from strop.training.step import Stepped, train_step

# A second head: no recipe has one.
TWO_HEADS = """
import dataclasses

from strop.method.algorithm import Algorithm
from strop.method.part import Term
from strop.parts.loss.value.regress_value import RegressValue
from strop.method.part import Use
from strop.recipes._base import average
from strop.recipes.gae import gae


def two_heads() -> Algorithm:
    algorithm = gae()
    columns = (("value_T", "value_low_T"), ("value_old_T", "value_low_old_T"))
    low = Term("low", Use(RegressValue(), columns), average("token-mean"), learner="critic")
    return dataclasses.replace(algorithm, terms=(*algorithm.terms, low))
"""
# 1 if an even number of digits was written; it logs measurements for recipes that need them.
REWARD = """
def even(completions, log_extra, **columns):
    digits = [sum(c.isdigit() for c in text) for text in completions]
    log_extra("speedup", [1 + n / 4 for n in digits])
    log_extra("profiled", [min(0.2 + n / 4, 1.0) for n in digits])
    log_extra("preference", [n % 3 for n in digits])
    log_extra("flaw", [n if n % 4 == 0 else -1 for n in digits])
    log_extra("first_false_step", [n % 3 if n % 2 else -1 for n in digits])
    log_extra("decoy", [n == 5 for n in digits])
    return [float(n % 2 == 0) for n in digits]
"""
# The same over two turns, for recipes that play episodes; with a call and an answer to judge by.
EPISODES = """
from strop.environments.base import Environment, Observation
from strop.data.tool_calls import Call


class Even(Environment):
    max_turns, max_tokens, reward_range = 2, 3, (0.0, 1.0)

    def reset(self, seed):
        self.turn, self.start = 0, seed % 7
        return Observation(f"{self.start}+{3 * seed % 5}:", state=str(self.start))

    def step(self, action):
        self.turn += 1
        even = sum(c.isdigit() for c in action) % 2 == 0
        return Observation(f"={self.turn}:", reward=even / 2, done=self.turn == 2,
                           state=f"{self.start},{self.turn}", valid=len(action) > 1, match=even,
                           measures={"correct": even, "speedup": 1.5, "profiled": len(action) / 4,
                                     "format": 1.0, "exact_match": 0.0, "execution": even})

    def columns(self):
        return {"answer": str(self.start), "reference_calls": [{"name": "count", "arguments": {}}]}

    def calls(self, action):
        return [Call("count", {})] if any(c.isdigit() for c in action) else []
"""
# Recipes with more phases than fit into a run of two steps, with fewer phases.
PHASED = {"drive": "drive(sizes=(4,), lasts=(0.5,), later=4, num_answers=2)"}
# Recipes that look for text which the lab's answers never contain, with text that they may contain.
HOLDING = {"sage_skill_chain": "sage_skill_chain(skill='(?P<name>[0-9])', call='{name}')"}
# Steps of a part's own training: hundreds by default, but a few show that it trains.
FITTED = (".fit_steps", 20)
# Recipes for several players, and the games for their training.
GAMES = {"mars": "open_spiel", "advevo_public_baseline": "hide_and_guess"}


def make_lab(folder: Path) -> Lab:
    """Prompts with given answers each; about half of the answers that are drawn are right."""
    lab = Lab.make(folder)
    rows = [{"prompt": f"{n}+{3 * n % 7}:", "answer": str(n), "completion": f"={n}",
             "set": n // 2, "safe": n % 2 == 0, "episode": n // 4, "stage": n % 4 // 2,
             "chosen": f"={n}", "rejected": f"={n + 1}+1"} for n in range(12)]  # fmt: skip
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    lab.rewards.write_text(REWARD, encoding="utf-8")
    return lab


def teacher_of(lab: Lab) -> Path:
    """A model with the lab's tokens and weights of its own."""
    folder = lab.data.parent / "teacher"
    if not folder.exists():
        save_model(folder, seed=7)
    return folder


def settings_for(lab: Lab, recipe: str, **sections: Any) -> dict[str, Any]:
    """Plain settings of a run of `recipe`."""
    recipe = (PHASED | HOLDING).get(recipe, recipe)
    sections["training"] = {"inspect": 64, **sections.get("training", {})}
    raw = lab.raw(recipe, reward="even", **sections)
    method = notation.recipe(recipe)
    rollout = method.algorithms[0].rollout.part
    raw["algorithm"]["sampling.num_prompts"] = 3
    for path, number in method.paths().items():
        if path.endswith(".warmup_steps"):  # two steps have no room for a warm-up
            raw["algorithm"][path] = 0
        if path.endswith((".num_critic_updates", ".num_policy_updates")):
            raw["algorithm"][path] = min(number, 4)  # of up to fifty, by default
    raw["algorithm"] |= fitted(method)
    if given := rollout.given:
        raw["algorithm"]["sampling.num_rollouts"] = len(given)
    if "teacher" in needs_of(method):
        raw["model"]["reference"] = str(teacher_of(lab))
    if recipe in GAMES:
        config = {"style": "compact"}
        raw["data"] = {"task": GAMES[recipe], "task_config": config, "train_size": 12,
                       "validation_size": 2}  # fmt: skip
        raw["reward"] = {}
    elif rollout.needs_environment:
        episodes = lab.data.parent / "episodes.py"
        episodes.write_text(EPISODES, encoding="utf-8")
        raw["data"] = {"task": f"{episodes}:Even", "train_size": 12, "validation_size": 2}
        raw["reward"] = {}
    return raw


def first_step(raw: dict[str, Any]) -> tuple[Stepped, list[Tensor]]:
    """The first step of a run of these settings, and the gradient that the optimiser got."""
    algorithm, world = world_of(raw)
    try:
        found = train_step(world, algorithm, {}, 1)
        assert world.policy.optimiser is not None
        return found, [each["exp_avg"].clone() for each in world.policy.optimiser.state.values()]
    finally:
        world.services.close()


def of_traces(lab: Lab) -> dict[str, Any]:
    """Sections of a run on recorded rollouts: groups of one to three, in one context or in two,
    with a tail that was written anew, unscored ones and tokens of unknown log-probability.
    """
    rows = []
    for group in range(12):
        for member in range(1 + group // 3 % 3):
            said = [3 + (group + n + 2 * member) % 9 for n in range(3)]
            first = {"prompt_ids": [3 + group % 10, 13], "output_ids": said}
            if member != 1:
                first["output_log_probs"] = [-0.5, -1.0, -0.25]
            held = [*first["prompt_ids"], *said]
            before = (held, [*held[:3], 14], [5, 6])[(group // 3 + member) % 3]
            second = {"prompt_ids": [*before, 15], "output_ids": [4 + member, 7],
                      "output_log_probs": [-0.75, -2.0], "output_mask": [1, group % 2]}  # fmt: skip
            reward = None if group == 4 and member else (group + member) % 2
            rows.append({"group": f"g{group}", "reward": reward, "turns": [first, second]})
    path = lab.data.parent / "traces.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {"data": {"task": f"traces:{path}"}, "reward": {}}


def fitted(method: Any) -> dict[str, int]:
    """What its parts train of their own, in few steps."""
    ending, few = FITTED
    return dict.fromkeys((path for path in method.paths() if path.endswith(ending)), few)


def run_of(raw: dict[str, Any], folder: Path, steps: int = 0) -> list[dict[str, Any]]:
    """The lines of a run's log, which ends after so many of its steps (0: after all)."""

    def leave(run: Any) -> None:
        run.stop_asked = bool(steps) and run.done == steps

    runner = Runner()
    runner.go(runner.start(raw, folder), leave)
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def steps_from_a_shell(strop: Strop, folder: Path, method: str, steps: int) -> list[dict[str, Any]]:
    """What `strop train` logs in so many steps, without the times."""
    words = Lab.make(folder).arguments(
        f"training.steps={steps}", "training.save_every=0", "training.rollouts_every=0",
        "--out", folder / "run", "--quiet",
    )  # fmt: skip
    result = strop("train", method, *words)
    assert result.code == 0, result.err
    lines = [line for line in without_times(folder / "run") if line["step"]]
    assert len(lines) == steps
    return lines


class Logged:
    """The names of what runs of recipes log, kept in a folder that all workers of the tests have:
    whoever needs those of a recipe that one of them ran need not run it again.
    """

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        base = factory.getbasetemp()
        self.folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "names"
        self.folder.mkdir(exist_ok=True)

    def keep(self, recipe: str, lines: list[dict[str, Any]]) -> None:
        """The names in a run's lines."""
        half = self.folder / f"{recipe}.{os.getpid()}"
        half.write_text(json.dumps(sorted(set().union(*lines))), encoding="utf-8")
        half.replace(self.folder / recipe)

    def of(self, recipe: str) -> set[str]:
        """Those of a recipe; none where nobody has run it yet."""
        path = self.folder / recipe
        return set(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else set()
