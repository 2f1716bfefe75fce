"""Collecting rollouts beside training: how much faster is it, and does it learn the same?

    python benchmarks/asynchronous.py speed --out FOLDER        some 50 minutes on two idle cores
    python benchmarks/asynchronous.py processes --out FOLDER    10
    python benchmarks/asynchronous.py staleness --out FOLDER    90
        [--steps 60] [--repeats 3] [--every 10] [--target 0.35] [OPTION=VALUE ...]

All train on `tiny-worked`, whose answers have 20 to 160 tokens, with 16 prompts of 8 answers. Runs
that are there already are not made again, so a table that was broken off goes on.

speed: `grpo` and `april_partial_rollout` (twice as many prompts under way), synchronous on both
cores, as one process with two threads and (grpo) as two with one; and with a process that
collects, bounds 1 and 4, one thread each, also `areal_decoupled_ppo`, which corrects for the age.
The order changes from repeat to repeat. Medians of

    step         seconds of a step, the first three left out
    rollout      of these, seconds for the answers: in the collecting process where there is one
    update       seconds for the update
    engine idle  share of the time for which nothing was under way in the collecting process
    trainer idle share of the time for which the trainer waited for answers
    age          mean age of the tokens, in steps
    to target    seconds of steps until pass@1 of the validation is --target, on a line between two
                 validations; nan: never
    pass@1       of the validation at the end
    speed        seconds of a step of the best synchronous grpo / of this one
    to success   the same of `to target`

Then what two processes with a thread each can give at most, were both always at work: seconds of
the best synchronous step / the longer one of the two halves of a step of one thread, its answers
and all else. And the part of it that is reached; draws that fill up for slow ones can bring more.

processes: the first and the second of these ways alone, and what the second takes of the first.

staleness: pass@1 after equally many samples for answers that are exactly 0, 4 and 16 steps old
(`engine.staleness`) with grpo, areal_decoupled_ppo and vcpo; mean of the seeds, least and most.
Two runs at once, a thread each; times mean nothing here.
"""

import argparse
import concurrent.futures
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

WARM = 3  # steps
SCORE = "eval/validation/pass@1"
NAMES = (
    "step", "rollout", "update", "engine idle", "trainer idle", "age", "to target", "pass@1",
)  # fmt: skip
PLAIN = "grpo(num_prompts=16, num_rollouts=8)"
DECOUPLED = "areal_decoupled_ppo(num_prompts=16, num_rollouts=8, num_minibatches=1)"
APRIL = "april_partial_rollout(num_prompts=16, chunk=32, num_rollouts=8)"
AGES = (0, 4, 16)
METHODS = {  # one update a step each
    "grpo": PLAIN, "areal_decoupled_ppo": DECOUPLED, "vcpo": "vcpo(num_prompts=16, num_rollouts=8)",
}  # fmt: skip


class Way(NamedTuple):
    """How a run is made."""

    method: str
    threads: int
    bound: int = 0
    processes: int = 1
    age: int = 0


SYNCHRONOUS = {
    "one process": Way(PLAIN, 2),
    "two processes": Way(PLAIN, 1, processes=2),
}
SPEED = {
    **SYNCHRONOUS,
    "bound 1": Way(PLAIN, 2, 1),
    "bound 4": Way(PLAIN, 2, 4),
    "decoupled, bound 1": Way(DECOUPLED, 2, 1),
    "decoupled, bound 4": Way(DECOUPLED, 2, 4),
    "partial": Way(APRIL, 2),
    "partial, bound 1": Way(APRIL, 2, 1),
    "one thread": Way(PLAIN, 1),
}


def train(folder: Path, seed: int, way: Way, options: argparse.Namespace) -> None:
    """A run of its own process or processes, unless it is there."""
    if (folder / "report.html").exists():
        return
    start = ["-m", "strop"]
    if way.processes > 1:
        count = f"--nproc-per-node={way.processes}"
        start = ["-m", "torch.distributed.run", "--standalone", count, *start]
    words = [
        "train", way.method, "--model", "tiny-worked", "--out", str(folder), "--quiet",
        f"seed={seed}", f"threads={way.threads}", f"training.max_staleness={way.bound}",
        f"engine.staleness={way.age}", f"training.steps={options.steps}", "training.lr=3e-4",
        f"evaluation.every={options.every}", "evaluation.num_samples=4",
        "evaluation.max_prompts=128", "training.rollouts_every=0", "training.save_every=0",
        "training.inspect=0", *options.words,
    ]  # fmt: skip
    surroundings = {**os.environ, "OMP_NUM_THREADS": str(way.threads)}
    command = [sys.executable, *start, *words]
    subprocess.run(command, check=True, env=surroundings, stdout=subprocess.DEVNULL)


def lines_of(folder: Path) -> list[dict[str, float]]:
    """The log."""
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def numbers(folder: Path, target: float) -> dict[str, float]:
    """The columns of a run."""
    lines = lines_of(folder)
    steps = [line for line in lines if line["step"] > WARM]

    def mean(name: str) -> float:
        return statistics.mean(line.get(name, 0.0) for line in steps)

    return {
        "step": mean("step_time"),
        "rollout": mean("timing_s/rollout") + mean("timing_s/reward"),
        "update": mean("timing_s/update"),
        "engine idle": mean("asynchronous/collector_idle"),
        "trainer idle": mean("asynchronous/trainer_idle"),
        "age": mean("sampling/age_steps"),
        "to target": seconds_to(lines, target),
        "pass@1": lines[-1].get(SCORE, math.nan),
    }


def seconds_to(lines: list[dict[str, float]], target: float) -> float:
    """Seconds of steps until the validation has that score, on a line between two validations."""
    spent, before = 0.0, (0.0, math.nan)
    for line in lines:
        spent += line.get("step_time", 0.0) if line["step"] else 0.0
        if SCORE not in line:
            continue
        then, score = before
        if line[SCORE] >= target:
            if math.isnan(score):
                return spent
            return then + (spent - then) * (target - score) / (line[SCORE] - score)
        before = (spent, line[SCORE])
    return math.nan


def medians(ways: dict[str, Way], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Make the runs, one after another, and take the median of each way's."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for seed in range(options.repeats):
        for name in sorted(ways, reverse=seed % 2 == 1):
            folder = options.out / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
            train(folder, seed, ways[name], options)
            found[name].append(numbers(folder, options.target))
    return {
        name: {key: statistics.median(run[key] for run in runs) for key in NAMES}
        for name, runs in found.items()
    }


def speed(options: argparse.Namespace) -> None:
    """The table, and what there is to reach."""
    middle = medians(SPEED, options)
    best = min(SYNCHRONOUS, key=lambda name: middle[name]["step"])
    print(f"{'':18s}" + "".join(f"{name:>13s}" for name in (*NAMES, "speed", "to success")))
    for name, row in middle.items():
        ratios = [middle[best][key] / row[key] for key in ("step", "to target")]
        cells = [row[key] for key in NAMES] + ratios
        print(f"{name:18s}" + "".join(f"{cell:13.3f}" for cell in cells))
    alone = middle["one thread"]
    longest = max(alone["rollout"], alone["step"] - alone["rollout"])
    most = middle[best]["step"] / longest
    print(f"answers are {alone['rollout'] / alone['step']:.0%} of a step of one thread")
    print(f"at most: {most:.3f} of {best}, the best synchronous one; reached of it:")
    for name in (name for name, way in SPEED.items() if way.bound):
        print(f"    {name:18s}{middle[best]['step'] / middle[name]['step'] / most:.0%}")


def processes(options: argparse.Namespace) -> None:
    """One process beside two, on both cores."""
    middle = medians(SYNCHRONOUS, options)
    for name, row in middle.items():
        print(f"{name:18s}" + "".join(f"{key} {row[key]:.3f}  " for key in NAMES[:3]))
    one, two = (middle[name]["step"] for name in SYNCHRONOUS)
    print(f"a step in two processes takes {two / one:.3f} of one in one")


def staleness(options: argparse.Namespace) -> None:
    """Success at equal samples, by method and age."""
    jobs = {
        (method, age, seed): options.out / f"{method}-{age}-{seed}"
        for method in METHODS
        for age in AGES
        for seed in range(options.repeats)
    }
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        made = [
            pool.submit(train, folder, seed, Way(METHODS[method], 1, age=age), options)
            for (method, age, seed), folder in jobs.items()
        ]
        for each in made:
            each.result()
    print(f"{'pass@1 by age':24s}" + "".join(f"{f'{age} steps':>26s}" for age in AGES))
    for method in METHODS:
        cells = []
        for age in AGES:
            found = [
                lines_of(jobs[method, age, seed])[-1][SCORE] for seed in range(options.repeats)
            ]
            low, high = min(found), max(found)
            cells.append(f"{statistics.mean(found):.3f} ({low:.3f} to {high:.3f})")
        print(f"{method:24s}" + "".join(f"{cell:>26s}" for cell in cells))


def main() -> None:
    """Train, then print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tables = {"speed": speed, "processes": processes, "staleness": staleness}
    parser.add_argument("table", choices=tables)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--every", type=int, default=10, help="steps between validations")
    parser.add_argument("--target", type=float, default=0.35, help="pass@1")
    options, options.words = parser.parse_known_args()
    if options.steps <= WARM + max(AGES if options.table == "staleness" else (0,)):
        parser.error("--steps: more than it takes to settle")
    print(f"{options.table}: {options.steps} steps, {options.repeats} seeds; {options.words}")
    tables[options.table](options)


if __name__ == "__main__":
    main()
