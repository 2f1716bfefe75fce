"""Scores during training, as metrics: `eval/{split}/pass@k` with their intervals."""

from typing import Any

from strop.evaluation.preferences import given_answer_metrics
from strop.evaluation.run import evaluate
from strop.evaluation.summary import as_json

KEYS = (
    "mean@n",
    "num_unscored",
    "pass@",
    "maj@",
    "auc",
    "entropy",
    "distinct@",
    "completions/mean_length",
)


def validator(num_samples: int, ks: tuple[int, ...], seed: int) -> Any:
    """An evaluator for the loop: the same prompts and the same draws every time."""

    def run(world: Any, algorithm: Any, split: str, prompts: Any) -> dict[str, float]:
        given = given_answer_metrics(world.services, algorithm.rollout.part, prompts)
        found = {f"eval/{split}/{name}": value for name, value in given.items()}
        if world.services.grading.can_grade:
            found |= sampled(world, algorithm, split, prompts)
        return found

    def sampled(world: Any, algorithm: Any, split: str, prompts: Any) -> dict[str, float]:
        evaluated = evaluate(
            prompts,
            algorithm.rollout,
            world.engine,
            world.services,
            num_samples=num_samples,
            ks=ks,
            seed=seed,
        )
        if not evaluated.estimates:  # a verifier that fails costs scores, never the run
            return {f"eval/{split}/num_unscored": float(evaluated.batch.size("B"))}
        found = as_json(evaluated.estimates, f"eval/{split}/")
        return {
            name: value
            for name, value in found.items()
            if value is not None and _kept(name.removeprefix(f"eval/{split}/"))
        }

    return run


def _kept(name: str) -> bool:
    """Whether a number is logged during training; counts have no interval."""
    return name.startswith(KEYS) and not (name.startswith("num_") and "/" in name)
