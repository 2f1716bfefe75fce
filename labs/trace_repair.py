"""Repairs with a trace of the program's run beside repairs without: what executing it for the model
is worth, and for how long. After TraceCoder, arXiv 2602.06875; docs/LABS.md says what is other.

    strop labs trace_repair                                   # three seeds
    strop labs trace_repair --seeds 0 --steps 40 --picture trace.svg

1. `tiny` imitates solved tasks of the environment `trace_repair`, with a trace in the prompt and
   without: `sft`.
2. Each of both goes on by `grpo`, on tasks of its kind, and is scored on the same validation tasks.

The trace holds nothing that the program and its input do not: it saves the model the execution. So
the gap should shrink as the model without it learns to execute.

Takes: three minutes a seed.
"""

import argparse
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import strop
from strop.environments.built_in.trace_repair import TraceRepair, task_of
from strop.evaluation.seeds import over_seeds

SOLVED = 10_000_000  # seed of the first task that is imitated; training has the first ones
HELD_BACK = 3
SCORE = "eval/validation/pass@1"
ARMS = {"with": True, "without": False}  # and whether there is a trace


@dataclass(frozen=True)
class Sizes:
    """Of all runs alike."""

    lines: int = 2
    tests: int = 1
    solved: int = 20_000
    imitation: int = 250  # updates of 64
    imitation_lr: float = 2e-3
    steps: int = 80
    prompts: int = 32
    rollouts: int = 8
    lr: float = 5e-4
    every: int = 10  # steps between scores
    validation: int = 200

    def task(self, trace: bool) -> dict[str, Any]:
        """The options of the environment."""
        return {"trace": trace, "lines": self.lines, "tests": self.tests, "held_back": HELD_BACK,
                "style": "compact"}  # fmt: skip


def bounds(sizes: Sizes, num: int = 2000) -> tuple[float, float]:
    """What a blind repair passes, and one that fits what is shown."""
    tasks = [task_of(seed, sizes.lines, sizes.tests, HELD_BACK) for seed in range(num)]
    right = [len(each.passing()) for each in tasks]
    fit = [len(each.passing(sizes.tests)) for each in tasks]
    blind = sum(right) / num / (2 * sizes.lines)
    return blind, sum(a / b for a, b in zip(right, fit, strict=True)) / num


def solved(trace: bool, sizes: Sizes) -> list[dict[str, str]]:
    """Rows to imitate."""
    world, rows = TraceRepair(**sizes.task(trace)), []
    for seed in range(SOLVED, SOLVED + sizes.solved):
        shown = world.reset(seed)
        rows.append({"prompt": shown.text, "completion": world.columns()["answer"]})
    return rows


def trained(arm: str, seed: int, sizes: Sizes, out: Path) -> Any:
    """The run of an arm; one that is there is read, and not repeated. Raises UserError for one
    that is incomplete.
    """
    folder, common = out / f"seed-{seed}" / arm, {"seed": seed, "progress": False}
    if folder.is_dir():
        run = strop.Run(str(folder))
        if sizes.steps not in curve(run):
            raise strop.UserError(
                f"{folder} has no score at step {sizes.steps}: delete it, or give --out"
            )
        return run
    common |= {"training_inspect": 0}
    imitated = strop.train(
        "sft", model="tiny", data=solved(ARMS[arm], sizes), out=str(folder) + "-imitates",
        training_steps=sizes.imitation, training_lr=sizes.imitation_lr, evaluation_every=0,
        sampling_num_prompts=64, **common,
    )  # fmt: skip
    newest = max((Path(imitated.folder) / "checkpoints").glob("step-*"))
    return strop.train(
        "grpo", model=str(newest), task="trace_repair", data_task_config=sizes.task(ARMS[arm]),
        out=str(folder), training_steps=sizes.steps, training_lr=sizes.lr,
        sampling_num_prompts=sizes.prompts, sampling_num_rollouts=sizes.rollouts,
        data_train_size=4000, data_validation_size=sizes.validation,
        evaluation_every=sizes.every, evaluation_num_samples=8, **common,
    )  # fmt: skip


def curve(run: Any) -> dict[int, float]:
    """Share of right repairs by step, on validation tasks."""
    table = run.metrics
    rows = table.to_pylist() if hasattr(table, "to_pylist") else table.to_dict("records")
    found = {int(row["step"]): row.get(SCORE) for row in rows}
    return {step: at for step, at in found.items() if at is not None and not math.isnan(at)}


def picture(curves: dict[str, list[dict[int, float]]], where: Path) -> None:
    """An SVG: success of both arms and, below, the gap; a line a seed."""
    wide, high, left = 420, 170, 50
    steps = sorted(curves["with"][0])
    gaps = [{step: a[step] - b[step] for step in steps}
            for a, b in zip(curves["with"], curves["without"], strict=True)]  # fmt: skip
    shapes = []
    for top, title, low, top_value, groups in (
        (30, "right repairs, by steps of grpo", 0.2, 0.6,
         ((curves["with"], "with a trace", "#0072b2"),
          (curves["without"], "without", "#d55e00"))),
        (260, "with less without", -0.2, 0.2, ((gaps, "", "#009e73"),)),
    ):  # fmt: skip
        shapes.append(f'<text x="{left}" y="{top - 12}">{title}</text>')
        for n in range(5):
            at, step = low + (top_value - low) * n / 4, steps[-1] * n / 4
            y = top + high * (1 - n / 4)
            shapes += [f'<path d="M{left},{y:.1f} h{wide}" stroke="#dddddd"/>',
                       f'<text x="{left - 6}" y="{y:.1f}" text-anchor="end">{at:.1f}</text>',
                       f'<text x="{left + wide * n / 4:.0f}" y="{top + high + 16}">{step:.0f}'
                       "</text>"]  # fmt: skip
        for number, (runs, name, colour) in enumerate(groups):
            y = top + high - 24 + 15 * number
            shapes.append(f'<text x="{left + 300}" y="{y}" fill="{colour}">{name}</text>')
            for run in runs:
                points = " L".join(
                    f"{left + wide * step / steps[-1]:.1f},"
                    f"{top + high * (1 - (run[step] - low) / (top_value - low)):.1f}"
                    for step in steps
                )
                shapes.append(f'<path d="M{points}" fill="none" stroke="{colour}"/>')
    where.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide + 90} 470" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(shapes)}</svg>\n"
    )


def report(seeds: Sequence[int], sizes: Sizes, out: Path) -> dict[str, list[dict[int, float]]]:
    """Train, and print both arms and the gap."""
    blind, reader = bounds(sizes)
    print(f"a blind repair passes {blind:.3f}, one that fits what is shown {reader:.3f}")
    curves: dict[str, list[dict[int, float]]] = {arm: [] for arm in ARMS}
    for seed in seeds:
        for arm in ARMS:
            curves[arm].append(curve(trained(arm, seed, sizes, out)))
            ends = [curves[arm][-1][step] for step in (0, sizes.steps)]
            print(f"seed {seed}, {arm} a trace: {ends[0]:.3f}, then {ends[1]:.3f}", flush=True)
    for step in sorted(curves["with"][0]):
        both = [[one[step] for one in curves[arm]] for arm in ARMS]
        gaps = [a - b for a, b in zip(*both, strict=True)]
        own, other, gap = map(over_seeds, (*both, gaps))
        print(f"step {step:3}: with {own:.3f}, without {other:.3f}, gap {gap:.3f}")
    return curves


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--seeds", default="0,1,2")
    for name in ("lines", "tests", "imitation", "steps", "prompts", "rollouts", "validation"):
        add(f"--{name}", type=int, default=getattr(Sizes, name))
    add("--lr", type=float, default=Sizes.lr, help="of grpo")
    add("--out", type=Path, help="folder of the runs; runs that are there are read")
    add("--picture", type=Path, help="an SVG file to write")
    options = parser.parse_args(words)
    if not all(each.isdigit() for each in options.seeds.split(",")):
        parser.error(f"--seeds {options.seeds}: give whole numbers with commas, 0,1,2")
    for name in ("lines", "tests", "imitation", "steps", "prompts", "rollouts", "validation"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if options.picture and not options.picture.parent.is_dir():
        parser.error(f"--picture {options.picture}: there is no such folder")
    given = {name: value for name, value in vars(options).items() if hasattr(Sizes, name)}
    sizes = Sizes(**given, every=max(options.steps // 8, 1))
    try:
        with tempfile.TemporaryDirectory() as scratch:
            out = options.out or Path(scratch)
            curves = report([int(each) for each in options.seeds.split(",")], sizes, out)
    except strop.UserError as error:
        parser.error(str(error))
    if options.picture:
        picture(curves, options.picture)


if __name__ == "__main__":
    main()
