"""TRL's trainer, and strop's in it, on a tiny model: four answers to each of two prompts a step."""

import hashlib
import importlib
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from models import CHARACTERS

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # answers come from a rollout_func here
HERE = Path(__file__).parent
# TRL looks for a module named vllm, and would mistake the folder tests/vllm for it.
with mock.patch.object(sys, "path", [path for path in sys.path if Path(path).resolve() != HERE]):
    importlib.import_module("trl.trainer.grpo_trainer")
# transformers and TRL warn about names that TRL itself still uses.
QUIET = "ignore::FutureWarning:(transformers|trl|accelerate)"
NEW = 6  # most tokens of an answer


def digits(completions: list[str], **columns: Any) -> list[float]:
    """Share of digits in the answer."""
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in completions]


def even(completions: list[str], **columns: Any) -> list[float | None]:
    """1 where an even number of digits was written; None for an empty answer."""
    return [float(sum(c.isdigit() for c in t) % 2 == 0) if t else None for t in completions]


def prompts(number: int = 12) -> list[str]:
    """Of four characters each, so that none is padded."""
    return [f"{n % 10}+{3 * n % 7}:" for n in range(number)]


def written(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Answers that depend on the prompt, its place among equal ones and the step alone."""
    tokenizer, seen = trainer._tokenizer, dict[str, int]()
    answers = []
    for prompt in prompts:
        seen[prompt] = seen.get(prompt, 0) + 1
        text = f"{prompt}/{seen[prompt]}/{trainer.state.global_step}"
        drawn = hashlib.blake2b(text.encode(), digest_size=NEW + 1).digest()
        ids = [3 + byte % len(CHARACTERS) for byte in drawn[: 1 + drawn[-1] % NEW]]
        answers.append(ids if len(ids) == NEW else [*ids, tokenizer.eos_token_id])
    ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    return {"prompt_ids": ids, "completion_ids": answers, "logprobs": None}


def make(model: Any, output: Path, recipe: Any = None, **options: Any) -> Any:
    """A trainer under a recipe, or TRL's own without one; options of GRPOConfig and the trainer."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from strop.integrations.trl import StropGRPOTrainer

    own = {
        name: options.pop(name)
        for name in (
            "rollout_func",
            "peft_config",
            "callbacks",
            "eval_dataset",
            "optimizers",
            "train_dataset",
        )
        if name in options
    }
    settings: dict[str, Any] = {
        "max_steps": 3, "num_generations": 4, "per_device_train_batch_size": 8,
        "max_completion_length": NEW, "learning_rate": 1e-2, "lr_scheduler_type": "constant",
        "report_to": [], "save_strategy": "no", "use_cpu": True, "bf16": False, "seed": 0,
        "activation_checkpointing": False, "logging_steps": 1, "disable_tqdm": True,
        "model_init_kwargs": {"dtype": "float32"}, "dataloader_pin_memory": False,
    }  # fmt: skip
    args = GRPOConfig(output_dir=str(output), **(settings | options))
    given = {
        "model": str(model), "reward_funcs": [digits, even], "args": args,
        "train_dataset": Dataset.from_dict({"prompt": prompts()}), **own,
    }  # fmt: skip
    return GRPOTrainer(**given) if recipe is None else StropGRPOTrainer(**given, recipe=recipe)


def trained(trainer: Any) -> list[dict[str, float]]:
    """What the trainer logged of every step."""
    trainer.train()
    return [row for row in trainer.state.log_history if "loss" in row]
