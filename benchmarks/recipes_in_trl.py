"""The shipped model on Countdown in TRL's GRPOTrainer, under several recipes.

    pip install 'strop[trl]'
    python benchmarks/recipes_in_trl.py [--recipes "grpo;gspo"] [--steps 40] [--seeds 0,1]

Each step samples 16 answers to each of 8 puzzles. It prints the mean reward (the share of right
answers) and the entropy of the first and of the last ten steps.
"""

import argparse
import statistics
import tempfile

from datasets import Dataset
from trl import GRPOConfig

from strop.assets import model_folder
from strop.environments import countdown
from strop.integrations.trl import StropGRPOTrainer

RECIPES = (
    "grpo",
    "gspo(clip_low=0.2, clip_high=0.2)",
    "dapo(refill=False)",
    "entrocraft",
    "adaptive_entropy_coef(target=0.5, delta=0.02)",
)


def run(recipe: str, steps: int, seed: int) -> tuple[float, float, float, float]:
    """Reward and entropy of the first and the last ten steps."""
    rows = countdown.puzzles("train")
    data = {name: [row[name] for row in rows] for name in ("prompt", "numbers", "target")}
    options = GRPOConfig(
        tempfile.mkdtemp(), num_generations=16, per_device_train_batch_size=64,
        gradient_accumulation_steps=2, max_completion_length=countdown.MAX_TOKENS, max_steps=steps,
        learning_rate=3e-4, lr_scheduler_type="constant", adam_beta2=0.95, seed=seed,
        report_to=[], save_strategy="no", use_cpu=True, bf16=False, logging_steps=1,
        activation_checkpointing=False, disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    trainer = StropGRPOTrainer(
        str(model_folder("tiny")),
        countdown.correct,
        options,
        Dataset.from_dict(data),
        recipe=recipe,
    )
    trainer.train()
    logged = [row for row in trainer.state.log_history if "loss" in row]
    first, last = logged[:10], logged[-10:]
    return tuple(  # type: ignore[return-value]
        statistics.mean(row[name] for row in part)
        for name in ("reward", "entropy")
        for part in (first, last)
    )


def main() -> None:
    """Run one recipe after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipes", default=";".join(RECIPES))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", default="0")
    options = parser.parse_args()
    said = []
    for recipe in options.recipes.split(";"):
        for seed in map(int, options.seeds.split(",")):
            before, after, was, now = run(recipe, options.steps, seed)
            said.append(
                f"{recipe}, seed {seed}: reward {before:.3f} -> {after:.3f}, "
                f"entropy {was:.3f} -> {now:.3f}"
            )
    print("\n".join(said))


if __name__ == "__main__":
    main()
