"""Where in a worked answer is the entropy, and so where are the tokens that decide it?

    python benchmarks/entropy_by_role.py MODEL_OR_CHECKPOINT ... [--prompts 64] [--rollouts 16]
        [--batches 4] [--split held_out] [--share 0.2] [--out roles.csv]

Answers are sampled to puzzles of `worked_countdown`, and their tokens grouped by role (first of a
line, symbol, digits of the result, ...), by what the first token of a line starts (a step, a new
beginning, the answer), by tenths of the answer and by line. For each group it prints:

- the share of all tokens, and their mean entropy in nats;
- the group's share of the top fifth (--share) by entropy, and the share of the group that is in it:
  these are the tokens that keep_high_entropy_tokens keeps, the fifth taken over the whole batch.

With 95% Student-t intervals: over batches for one model, over models (each the mean of its batches)
for several. --out writes the numbers of every model and batch.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from worked_answers import ROLES, answers, draw, lines_of, open_world, roles_of

from strop.environments.worked_countdown import AGAIN, ANSWER, STEP
from strop.evaluation.seeds import over_seeds
from strop.method.algorithm import Algorithm
from strop.parts.selection.keep_high_entropy_tokens import KeepHighEntropyTokens
from strop.support.tables import write_rows
from strop.training.world import World

LAST_LINE = 12  # later lines count as this one
BEGUN = {AGAIN: "a new beginning", ANSWER: "the answer", "": "the end"}
STEP_BEGUN = "a step"
TABLES = {
    "role": ROLES,
    "first of a line begins": (STEP_BEGUN, *BEGUN.values()),
    "tenth of the answer": tuple(f"{tenth + 1}" for tenth in range(10)),
    "line": (*map(str, range(1, LAST_LINE)), f"{LAST_LINE} or later"),
}
NUMBERS = ("share", "entropy", "share of top", "in top")
RANGES = dict.fromkeys(NUMBERS, (0.0, 1.0)) | {"entropy": (0.0, math.inf)}


class Summary(NamedTuple):
    """For the tokens with a label: share of all, mean entropy, share of the top, share in it."""

    share: float
    entropy: float
    of_top: float
    in_top: float


def labels_of(pieces: Sequence[str]) -> dict[str, list[str]]:
    """By table, the label of each token of an answer; "" if it has none there."""
    roles, num = roles_of(pieces), len(pieces)
    lines = [min(line, LAST_LINE - 1) for line in lines_of(pieces)]
    starts = [place == 0 or pieces[place - 1].endswith(STEP) for place in range(num)]
    return {
        "role": roles,
        "first of a line begins": [
            BEGUN.get(piece[:1], STEP_BEGUN) if start else ""
            for piece, start in zip(pieces, starts, strict=True)
        ],
        "tenth of the answer": [str(10 * place // num + 1) for place in range(num)],
        "line": [TABLES["line"][line] for line in lines],
    }


def summaries(
    labels: Sequence[str], names: Sequence[str], entropy_N: Tensor, top_N: Tensor
) -> dict[str, Summary]:
    """A summary of the tokens with each label; NaN if the label does not occur."""
    found = {}
    number = {name: place for place, name in enumerate(names)}
    label_N = torch.tensor([number.get(label, -1) for label in labels])
    for place, name in enumerate(names):
        own_N = label_N == place
        found[name] = Summary(
            float(own_N.double().mean()),
            float(entropy_N[own_N].double().mean()),
            float(own_N[top_N].double().mean()),
            float(top_N[own_N].double().mean()),
        )
    return found


def one_batch(
    world: World, algorithm: Algorithm, number: int, pool: Sequence[int], share: float
) -> tuple[dict[str, float], dict[str, dict[str, Summary]]]:
    """(numbers of the batch as a whole, summaries by table and label)."""
    batch = draw(world, algorithm, number, pool)
    entropy_T = world.policy.columns(batch, ("entropy_T",), algorithm.rollout.part.temperature)[
        "entropy_T"
    ]
    mask_T = batch["mask_T"]
    kept = KeepHighEntropyTokens(share)(entropy_T, mask_T, mask_T)
    entropy_N, top_N = entropy_T[mask_T].cpu(), kept.value.gradient_T[mask_T].cpu()
    labels: dict[str, list[str]] = {table: [] for table in TABLES}
    found = answers(world, batch)
    for answer in found:
        for table, own in labels_of(answer.pieces).items():
            labels[table] += own
    whole = {
        "right": float(batch["reward_B"].mean()),
        "tokens of an answer": float(batch["length_B"].double().mean()),
        "lines of an answer": sum(1 + each.text.count(STEP) for each in found) / len(found),
        "entropy": float(entropy_N.double().mean()),
        "smallest entropy in the top": kept.metrics["entropy_control/threshold"],
        "share of all entropy in the top": float(entropy_N[top_N].sum() / entropy_N.sum()),
    }
    return whole, {
        table: summaries(labels[table], names, entropy_N, top_N) for table, names in TABLES.items()
    }


def measure(model: str, options: argparse.Namespace) -> list[Any]:
    """The results of every batch of a model."""
    sizes = {"num_prompts": options.prompts, "num_rollouts": options.rollouts}
    words = [f"sampling.{name}={size}" for name, size in sizes.items()]
    world, algorithm = open_world(["grpo"], model, words)
    task = world.services.task
    split = {"held_out": task.heldout, "validation": task.validation, "train": task.train}
    pool = [prompt.uid for prompt in split[options.split]]
    try:
        return [
            one_batch(world, algorithm, number, pool, options.share)
            for number in range(options.batches)
        ]
    finally:
        world.services.close()


def rows_of(model: str, batches: Sequence[Any]) -> list[dict[str, Any]]:
    """One row per batch, table and label."""
    found: list[dict[str, Any]] = []
    for number, (whole, tables) in enumerate(batches):
        begin = {"model": model, "batch": number}
        found += [begin | {"table": "batch", "label": k, "value": v} for k, v in whole.items()]
        found += [
            begin | {"table": table, "label": label} | dict(zip(NUMBERS, summary, strict=True))
            for table, summaries in tables.items()
            for label, summary in summaries.items()
        ]
    return found


def interval(rows: Sequence[dict[str, Any]], name: str) -> str:
    """Mean and interval of a number: over batches, or over models if there are several.

    An interval is cut to what a share or an entropy can be. Batches without such a token have no
    entropy and are left out of its mean.
    """
    models: dict[str, list[float]] = {}
    for row in rows:
        if not math.isnan(row[name]):
            models.setdefault(row["model"], []).append(row[name])
    if not models:
        return "-"
    each = [sum(values) / len(values) for values in models.values()]
    mean = over_seeds(each if len(each) > 1 else next(iter(models.values())))
    if mean.n_seeds == 1:
        return f"{mean.value:.3f}"
    least, most = RANGES.get(name, (-math.inf, math.inf))
    return f"{mean.value:.3f} ({max(mean.low, least):.3f} to {min(mean.high, most):.3f})"


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Prints the tables."""
    of: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        of.setdefault((row["table"], row["label"]), []).append(row)
    for (table, label), own in of.items():
        if table == "batch":
            print(f"{label:32s} {interval(own, 'value')}")
    for table, names in TABLES.items():
        print(f"\n{table:32s}" + "".join(f"{name:>26s}" for name in NUMBERS))
        for name in names:
            own = of[table, name]
            if any(row["share"] for row in own):
                cells = "".join(f"{interval(own, number):>26s}" for number in NUMBERS)
                print(f"{name:32s}{cells}")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--rollouts", type=int, default=16)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--split", choices=("held_out", "validation", "train"), default="held_out")
    parser.add_argument("--share", type=float, default=0.2, help="top share of tokens by entropy")
    parser.add_argument("--out", type=Path, help="CSV file of every batch's numbers")
    options = parser.parse_args()
    rows = [row for model in options.models for row in rows_of(model, measure(model, options))]
    show(rows)
    if options.out:
        write_rows(options.out, ("model", "batch", "table", "label", "value", *NUMBERS), rows)


if __name__ == "__main__":
    main()
