"""Thousands of wrong keywords, rows, rewards and methods from a script: or one UserError."""

import random
from pathlib import Path
from typing import Any

import pytest
from doors import NUMBERS, TEXTS, Outcomes, seeded, tries, wrong

from strop.api.inputs import files_of, sources_of
from strop.api.messages import in_python
from strop.api.options import combined, from_keywords, method_of, recipe
from strop.training.settings import config

KEYWORDS = (
    "training_lr", "training_steps", "seed", "threads", "data_validation_size", "reward_weights",
    "model_dtype", "engine_kind", "evaluation_k", "data_task_config", "sampling_num_prompts",
    "rollout_max_tokens", "loss_clip_high", "loss.clip_high", "advantage", "bound", "average",
    "selection", "phases", "phases.a.until", "algorithm", "stages", "recipe", "training",
    "training_", "_training", "loss_", "critic_lr", "control", "terms.policy.coef",
    "data_files", "tracking_to",
)  # fmt: skip


def keyword(rng: random.Random) -> str:
    name = rng.choice(KEYWORDS)
    return name if rng.random() < 0.8 else name[: rng.randrange(len(name))] + rng.choice(TEXTS)


def settings(options: dict[str, Any], method: Any) -> Any:
    return combined(method_of(method), from_keywords(options), {}).build()


def test_keywords_and_methods() -> None:
    rng, outcomes = seeded(0), Outcomes()
    grpo = recipe("grpo")
    for _ in tries(300):
        options = {keyword(rng): wrong(rng) for _ in range(rng.choice((1, 1, 2)))}
        method = rng.choice(("grpo", "gspo", grpo, wrong(rng)))
        outcomes.of(settings, options, method)
        outcomes.of(grpo.replace, **{str(k): v for k, v in options.items() if k != "self"})
        parameter = {rng.choice(("clip_high", "clip_low", *options)): wrong(rng)}
        outcomes.of(recipe, rng.choice(("gspo", wrong(rng))), **parameter)
    outcomes.check()


def test_rows_and_rewards(tmp_path: Path) -> None:
    rng, outcomes = seeded(1), Outcomes()
    for number in tries(250):
        row = {rng.choice(("prompt", "answer", 1, *TEXTS[:6])): wrong(rng) for _ in range(3)}
        rows = rng.choice((wrong(rng), [row], [row, wrong(rng)], {"train": [row]}, iter([row])))
        outcomes.of(files_of, rows, tmp_path / "rows" / "data.jsonl")
        rewards = rng.choice((wrong(rng), [wrong(rng)], [lambda **_: [], wrong(rng)]))
        outcomes.of(sources_of, rewards, tmp_path / f"rewards-{number % 7}")
    outcomes.check()


@pytest.mark.parametrize("text", [*TEXTS, *map(str, NUMBERS[:12]), "--k", "--resume", "--data --k"])
def test_any_message_is_retold(text: str) -> None:
    assert isinstance(in_python(text), str)
    assert config.settings()  # and nothing of it was changed
