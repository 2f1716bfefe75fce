"""Does a method's credit fall on the line in which a worked answer goes wrong?

    python benchmarks/credit_on_false_steps.py MODEL [OPTION=VALUE] ... RECIPE [OPTION=VALUE] ...
        [RECIPE ...] ... [--prompts 32] [--rollouts 8] [--batches 4] [--critic-steps 0]
        [--out credit.csv]

Options before the first recipe apply to all recipes, options after a recipe to that recipe.
`model.name=CHECKPOINT` after a recipe takes other weights than MODEL. For example, in a shell:

    python benchmarks/credit_on_false_steps.py tiny-worked --critic-steps 40 grpo spo_chain \\
        'spae(marker="\\n", opening="=", reference="answers")' probe.max_tokens=16 gae

Every recipe samples its rollouts (the same if they sample alike; no group is dropped) and takes
the step up to advantages and selection. A line's credit is the mean advantage of its tokens that
learn, 0 if none does. For every wrong answer with two lines or more, whose first false line is
named by the verifier of `worked_countdown`, it computes:

- rho: Spearman's correlation of the lines' credit and being the false one; below 0 is right;
- above: the share of the other lines with more credit, ties half (AUC); 0.5 by chance;
- lowest: how often the false line has the least credit (1/n where n lines have it); `chance`: 1/n
  of all its lines;
- constant: share of the answers whose lines all have equal credit, as in grpo by construction. Then
  there is no correlation; it counts as 0.

It prints means over answers, with 95% Student-t intervals over batches: for all wrong answers, and
for those whose false line is a step, the answer, or cut off. Two rows without a recipe show
baselines that cost nothing: blaming the last line (credit falls from line to line), and the
policy's own log-probability.

A critic is loaded from the checkpoint, or is trained on rollouts of MODEL for --critic-steps steps
while the policy stays fixed.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from worked_answers import Answer, answers, credit, draw, lines_of, open_world

from strop.batch.batch import Batch
from strop.cli.compare import methods_of
from strop.environments.worked_countdown import ANSWER, STEP, first_false_step
from strop.evaluation.seeds import over_seeds
from strop.method.algorithm import Algorithm
from strop.support.errors import UserError
from strop.support.tables import write_rows
from strop.training.record import checkpoint
from strop.training.step import train_step
from strop.training.world import World

LAST, LIKELY = "no recipe: the last line", "no recipe: the least likely line"
KINDS = ("all", "step", "answer", "cut off")  # of false lines


class Found(NamedTuple):
    """How well the credit of an answer's lines agrees with the false line."""

    rho: float
    above: float
    lowest: float
    chance: float
    constant: float


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values get the mean of their places."""
    order = sorted(values)
    return [(2 * order.index(v) + 1 + order.count(v)) / 2 for v in values]


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Correlation of the ranks; NaN if one side is constant."""
    centred = [[rank - (len(side) + 1) / 2 for rank in ranks(side)] for side in (left, right)]
    spread = math.prod(math.sqrt(sum(x * x for x in side)) for side in centred)
    return sum(a * b for a, b in zip(*centred, strict=True)) / spread if spread else math.nan


def judge(credits: Sequence[float], false: int) -> Found:
    """The agreement in one answer of two lines or more; `false` is the index of the false line."""
    others = [c for place, c in enumerate(credits) if place != false]
    own, num = credits[false], len(credits)
    above = sum(c > own for c in others) + sum(c == own for c in others) / 2
    lowest = own == min(credits)
    rho = spearman(credits, [float(place == false) for place in range(num)])
    return Found(
        0.0 if math.isnan(rho) else rho,
        above / len(others),
        1 / credits.count(own) if lowest else 0.0,
        1 / num,
        float(math.isnan(rho)),
    )


def line_means(
    values: Sequence[float], counts: Sequence[bool], lines: Sequence[int]
) -> list[float]:
    """The mean of each line's values that count, 0 if none does; every line must occur.

    Means are rounded to twelve digits, so that means of equal values are equal.
    """
    of: dict[int, list[float]] = {line: [] for line in sorted(set(lines))}
    for value, count, line in zip(values, counts, lines, strict=True):
        of[line] += [value] if count else []
    return [float(f"{math.fsum(own) / max(len(own), 1):.12g}") for own in of.values()]


def kind_of(text: str, false: int, truncated: bool) -> str:
    """The kind of the false line."""
    lines = text.split(STEP)
    if truncated and false == len(lines) - 1:
        return "cut off"
    return "answer" if lines[false].startswith(ANSWER) else "step"


def judged(
    world: World, batch: Batch, found: Sequence[Answer], credit_T: Tensor, learns_T: Tensor
) -> dict[str, list[Found]]:
    """The agreement in every wrong answer, by kind of its false line."""
    groups: dict[str, list[Found]] = {kind: [] for kind in KINDS}
    uids = batch["uid_P"][batch["group_B"]].tolist()
    for answer in found:
        row = world.services.texts.row(uids[answer.rollout])
        false = first_false_step(answer.text, row["numbers"], row["target"])
        lines = lines_of(answer.pieces)
        # a line that was cut off before its first token has no credit
        if batch["reward_B"][answer.rollout] > 0 or lines[-1] == 0 or false not in lines:
            continue
        values, counts = credit_T[answer.row_N].tolist(), learns_T[answer.row_N].tolist()
        own = judge(line_means(values, counts, lines), false)
        kind = kind_of(answer.text, false, bool(batch["truncated_B"][answer.rollout]))
        groups["all"].append(own)
        groups[kind].append(own)
    return groups


def credits_of(
    label: str, batch: Batch, found: Sequence[Answer], weights: str
) -> dict[str, tuple[Tensor, Tensor]]:
    """Rows of the table, (credit, tokens that count): the recipe's, and the two baselines.

    weights: a suffix for the baselines' names if the weights are not those of MODEL.
    """
    mask_T, late_T = batch["mask_T"], torch.zeros_like(batch["advantage_T"])
    for answer in found:
        late_T[answer.row_N] = -torch.tensor(lines_of(answer.pieces)).to(late_T)
    return {
        label: (batch["advantage_T"], batch["gradient_T"]),
        LAST + weights: (late_T, mask_T),
        LIKELY + weights: (batch["logp_behavior_T"], mask_T),
    }


def with_critic(world: World, algorithm: Algorithm, model: str, num_steps: int) -> None:
    """Loads a method's critic from the checkpoint, or trains it while the policy stays fixed.

    Raises UserError if there is none and none is to be trained.
    """
    if world.critic is None:
        return
    if (Path(model) / "critic.pt").is_file():
        world.critic.load_state_dict(checkpoint.read(Path(model), "critic.pt"))
        return
    if not num_steps:
        raise UserError(
            f"{model} has no critic, which the method needs: give model.name=CHECKPOINT of a run "
            "of it after the recipe, or --critic-steps 40"
        )
    world.lr, state = 0.0, dict[str, Any]()
    for step in range(1, num_steps + 1):
        stepped = train_step(world, algorithm, state, step)
        state = stepped.state
    shown = [f"{k} {v:.3f}" for k, v in stepped.metrics.items() if "explained_variance" in k]
    print(f"critic after {num_steps} steps: {', '.join(shown)}", flush=True)


def measure(label: str, words: Sequence[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each kind of credit, batch and kind of false line."""
    sizes = {"num_prompts": options.prompts, "num_rollouts": options.rollouts}
    given = [f"sampling.{name}={size}" for name, size in sizes.items()]
    world, algorithm = open_world(words, options.model, given)
    own = [text.partition("=")[2] for text in words if text.startswith("model.name=")][-1:]
    model = (own or [options.model])[0]
    weights = f" ({model})" if model != options.model else ""
    rows = []
    try:
        algorithm = algorithm.at_step(1, world.num_steps)
        with_critic(world, algorithm, model, options.critic_steps)
        for number in range(options.batches):
            batch = credit(world, algorithm, draw(world, algorithm, number), number)
            found = answers(world, batch)
            for name, columns in credits_of(label, batch, found, weights).items():
                for kind, each in judged(world, batch, found, *columns).items():
                    means = {
                        key: sum(getattr(one, key) for one in each) / len(each) if each else ""
                        for key in Found._fields
                    }
                    begin = {"credit": name, "batch": number, "false": kind, "answers": len(each)}
                    rows.append(begin | means)
    finally:
        world.services.close()
    return rows


def cells(rows: Sequence[dict[str, Any]]) -> str:
    """A line of a table: means with intervals over batches."""
    means = {key: over_seeds([row[key] for row in rows]) for key in Found._fields}
    shown = [f"{sum(row['answers'] for row in rows):8d}"]
    shown += [f"{f'{means[key]:+.3f}':>26s}" for key in Found._fields[:3]]
    shown += [f"{means['chance'].value:8.3f}{means['constant'].value:9.2f}"]
    return "".join(shown) + (" all, by construction" if means["constant"].value == 1 else "")


def show(rows: Sequence[dict[str, Any]]) -> None:
    """A table for each kind of false line."""
    names = list(dict.fromkeys(row["credit"] for row in rows))
    wide = max(map(len, names))
    for kind in KINDS:
        of = {
            name: [r for r in rows if (r["credit"], r["false"]) == (name, kind) and r["answers"]]
            for name in names
        }
        if not any(of.values()):
            continue
        heads = "".join(f"{name:>26s}" for name in Found._fields[:3])
        print(f"\n{f'false line: {kind}':{wide}s} answers{heads}  chance constant")
        for name, own in of.items():
            if own:
                print(f"{name:{wide}s}{cells(own)}")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("methods", nargs="+", metavar="RECIPE [OPTION=VALUE]")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--critic-steps", type=int, default=0)
    parser.add_argument("--out", type=Path, help="CSV file of every batch's numbers")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for label, words, *_ in methods_of(options.methods):
        known = {row["credit"] for row in rows}
        rows += [row for row in measure(label, words, options) if row["credit"] not in known]
    show(rows)
    if options.out:
        write_rows(options.out, ("credit", "batch", "false", "answers", *Found._fields), rows)


if __name__ == "__main__":
    main()
