"""Loss and gradient norm of sft and dpo and of TRL's trainers, step by step on the same rows.

    pip install trl==1.16.0 -e .
    python benchmarks/given_answers_vs_trl.py [--steps 6]

Eight Countdown puzzles with a right and a wrong answer form the batch of every step, so the order
of rows does not matter. Both train the shipped model in float32 with AdamW, a constant learning
rate of 1e-4 and gradients scaled down to norm 1. It prints the largest differences, and exits with
code 1 if one is above 1e-4 of the value.
"""

import argparse
import json
import math
import random
import tempfile
from pathlib import Path
from typing import Any

from datasets import Dataset
from processes import train
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from strop.assets import model_folder
from strop.environments import countdown
from strop.tracking.metrics_file import lines_of

RECIPES = ("sft", "dpo", 'dpo(loss_type="hinge")', 'dpo(loss_type="ipo")')


def rows() -> list[dict[str, str]]:
    """Eight puzzles with a demonstration and a pair each."""
    rng, found = random.Random(0), []
    for row in countdown.puzzles("train")[:8]:
        expressions = countdown.expressions(tuple(row["numbers"]))
        wrong = [text for text, value in expressions if value != row["target"]]
        given = {"completion": row["completion"], "chosen": row["completion"]}
        found.append({"prompt": row["prompt"], **given, "rejected": rng.choice(wrong)})
    return found


def theirs(recipe: str, steps: int, folder: Path) -> list[tuple[float, float]]:
    """(loss, gradient norm) of every step of TRL's trainer."""
    path = str(model_folder("tiny"))
    model = AutoModelForCausalLM.from_pretrained(path, dtype="float32")
    options: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": 8, "max_steps": steps,
        "learning_rate": 1e-4, "lr_scheduler_type": "constant", "logging_steps": 1, "report_to": [],
        "adam_beta1": 0.9, "adam_beta2": 0.95, "weight_decay": 0.0, "max_grad_norm": 1.0,
        "bf16": False, "use_cpu": True, "gradient_checkpointing": False, "save_strategy": "no",
        "disable_tqdm": True,
    }  # fmt: skip
    if recipe == "sft":
        columns, trainer, settings = ("prompt", "completion"), SFTTrainer, SFTConfig(**options)
    else:
        loss = recipe.split('"')[1] if '"' in recipe else "sigmoid"
        columns, trainer = ("prompt", "chosen", "rejected"), DPOTrainer
        settings = DPOConfig(**options, beta=0.1, loss_type=[loss])
    data = Dataset.from_list([{name: row[name] for name in columns} for row in rows()])
    run = trainer(
        model=model, args=settings, train_dataset=data,
        processing_class=AutoTokenizer.from_pretrained(path),
    )  # fmt: skip
    run.train()
    return [(line["loss"], line["grad_norm"]) for line in run.state.log_history if "loss" in line]


def ours(recipe: str, steps: int, folder: Path) -> list[tuple[float, float]]:
    """The same for strop."""
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    run = train(
        folder / "run", recipe, "--data", str(data), "--quiet", f"training.steps={steps}",
        "training.lr=1e-4", "sampling.num_prompts=8", "evaluation.every=0",
    )  # fmt: skip
    return [(line["policy_loss"], line["grad_norm"]) for line in lines_of(run)]


def farthest(pairs: list[tuple[float, float]]) -> float:
    """The largest relative difference; infinite where a side is not a number."""
    gaps = [abs(a / b - 1) for a, b in pairs]
    return math.inf if any(map(math.isnan, gaps)) else max(gaps)


def main() -> None:
    """Compare all recipes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    worst = 0.0
    for recipe in RECIPES:
        with tempfile.TemporaryDirectory() as name:
            pairs = list(
                zip(
                    ours(recipe, options.steps, Path(name)),
                    theirs(recipe, options.steps, Path(name) / "trl"),
                    strict=True,
                )
            )
        gaps = [farthest([(a[i], b[i]) for a, b in pairs]) for i in (0, 1)]
        worst = max(worst, *gaps)
        first, last = pairs[0][0][0], pairs[-1][0][0]
        print(f"{recipe}: loss {first:.6f} -> {last:.6f}; largest relative difference from TRL: "
              f"loss {gaps[0]:.1e}, gradient norm {gaps[1]:.1e}")  # fmt: skip
    raise SystemExit(worst > 1e-4)


if __name__ == "__main__":
    main()
