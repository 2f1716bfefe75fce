"""How often is a model right at first, and how often after a second attempt?

    python benchmarks/two_attempts.py METHOD MODEL_OR_CHECKPOINT ... [--task NAME] [--prompts 128]
        [--rollouts 8] [--batches 1] [--split held_out] [--out attempts.csv] [OPTION=VALUE ...]

METHOD is one whose rollouts are two attempts, marked in `stage_B` as 0 and 1: `score_two_attempt`
(the answer, then another one after it) or `r3l` (the episode, then one that a reflection guides).
Each model is sampled in that way, whatever it was trained with. The output, for each model and as a
mean over them with its 95% Student-t interval:

    first      mean reward of first attempts, including those without a second one
    asked      share of first attempts that a second one followed
    before     mean reward of those first attempts
    after      mean reward of the second attempts
    mended     share of wrong first attempts that became right, a reward of 1
    spoilt     share of right first attempts that became wrong

The last two are means over the models that have such attempts. A built-in environment needs
data.task_config={style: compact} with `tiny`.
"""

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from worked_answers import draw, open_world

from strop.batch.batch import Batch
from strop.evaluation.seeds import ANYTHING, SHARE, over_seeds
from strop.support.tables import write_rows

OPTION = re.compile(r"[a-z_]+\.[a-z_.]+=")  # argparse takes such words for models
FIRST, SECOND = 0, 1
RIGHT = 1.0
NAMES = ("first", "asked", "before", "after", "mended", "spoilt")
SHARES = ("asked", "mended", "spoilt")  # the others are mean rewards


def pairs_of(batch: Batch) -> list[tuple[float, float | None]]:
    """Rewards of every first attempt and of the second one after it.

    Attempts at one prompt that see each other share `conversation_B`, or the second names the first
    as its parent.
    """
    stage, reward = batch["stage_B"].tolist(), batch["reward_B"].tolist()
    if "conversation_B" in batch:
        key = batch["conversation_B"].tolist()
    else:
        parent = batch["parent_B"].tolist()
        key = [row if at == FIRST else parent[row] for row, at in enumerate(stage)]
    second = {key[row]: reward[row] for row, at in enumerate(stage) if at == SECOND}
    return [(reward[row], second.get(key[row])) for row, at in enumerate(stage) if at == FIRST]


def numbers(pairs: Sequence[tuple[float, float | None]]) -> dict[str, float]:
    """The printed numbers; NaN for a mean of nothing."""
    first = torch.tensor([one for one, _ in pairs], dtype=torch.float64)
    both = [(one, two) for one, two in pairs if two is not None]
    before, after = torch.tensor(both, dtype=torch.float64).view(-1, 2).unbind(1)
    right = before >= RIGHT
    return {
        "first": float(first.mean()),
        "asked": len(both) / len(pairs),
        "before": float(before.mean()),
        "after": float(after.mean()),
        "mended": float((after >= RIGHT)[~right].double().mean()),
        "spoilt": float((after < RIGHT)[right].double().mean()),
    }


def measure(model: str, options: argparse.Namespace) -> dict[str, float]:
    """The numbers of a model over all batches."""
    sizes = {"num_prompts": options.prompts, "num_rollouts": options.rollouts}
    words = [*options.words, *(f"sampling.{name}={size}" for name, size in sizes.items())]
    world, algorithm = open_world([options.method], model, words, options.task)
    if "stage_B" not in algorithm.rollout.part.writes:
        raise SystemExit(f"{options.method} does not make second attempts")
    task = world.services.task
    split = {"held_out": task.heldout, "validation": task.validation, "train": task.train}
    pool = [prompt.uid for prompt in split[options.split]]
    try:
        batches = [draw(world, algorithm, number, pool) for number in range(options.batches)]
    finally:
        world.services.close()
    return numbers([pair for batch in batches for pair in pairs_of(batch)])


def shown(name: str, values: Sequence[float]) -> str:
    """Mean and interval of a number over the models that have it."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return f"none, of {len(values)} models"
    mean = over_seeds(known, within=SHARE if name in SHARES else ANYTHING)
    of = "" if len(known) == len(values) else f", of {len(known)} models"
    return f"{mean:.3f}{of}"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("method")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--task", default="", help="default: the model's own")
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--batches", type=int, default=1)
    parser.add_argument("--split", choices=("held_out", "validation", "train"), default="held_out")
    parser.add_argument("--out", type=Path, help="CSV file of every model's numbers")
    options, options.words = parser.parse_known_args()
    options.words += [word for word in options.models if OPTION.match(word)]
    options.models = [word for word in options.models if not OPTION.match(word)]
    if not options.models:
        parser.error("give a model or a checkpoint")
    rows = [{"model": model} | measure(model, options) for model in options.models]
    print(f"{'':40s}" + "".join(f"{name:>10s}" for name in NAMES))
    for row in rows:
        print(f"{row['model'][-40:]:40s}" + "".join(f"{row[name]:10.3f}" for name in NAMES))
    for name in NAMES:
        print(f"{name:10s} {shown(name, [row[name] for row in rows])}")
    if options.out:
        write_rows(options.out, ("model", *NAMES), rows)


if __name__ == "__main__":
    main()
