"""Collecting rollouts while training: how much faster is it, and does it learn the same?

    python benchmarks/asynchronous.py speed --out FOLDER        about 30 minutes on two idle cores
    python benchmarks/asynchronous.py success --out FOLDER      30
    python benchmarks/asynchronous.py processes --out FOLDER    10
    python benchmarks/asynchronous.py staleness --out FOLDER    90
        [--steps 48] [--repeats 3] [--every 16] [--puzzles 512] [OPTION=VALUE ...]

All train on `tiny-worked`, whose answers have 20 to 160 tokens, with 16 prompts of 8 answers. Runs
that exist already are not repeated, so an interrupted table is resumed. No run validates, since a
collecting process would continue meanwhile; checkpoints are graded afterwards: pass@1 of
--puzzles held-out puzzles with 4 answers each.

speed: `grpo` and `april_partial_rollout` (twice as many prompts in flight), synchronous on both
cores, as one process with two threads and (grpo) as two processes with one thread; and with a
collecting process, bounds 1 and 4, one thread each, also `areal_decoupled_ppo` and, as bypass,
`rollout_correction_bypass`, whose clips start from the policy that sampled.
The order changes from repeat to repeat. The table has medians of

    step         seconds of a step, without the first three steps
    rollout      of these, seconds for the answers: in the collecting process if there is one
    update       seconds for the update
    engine idle  share of the time in which the collecting process had nothing in flight
    trainer idle share of the time for which the trainer waited for answers
    age          mean age of the tokens, in steps
    speed        seconds of a step of the best synchronous grpo / of this one

Then the bound for two processes with a thread each, if both were always at work: seconds of the
best synchronous step / the longer half of a step of one thread (its answers, or all else). And the
share of it that is reached; draws that replace slow answers can exceed it.

success: pass@1 over the seconds of steps, every --every steps, of the best synchronous grpo (two
processes), of grpo at bound 1 and of bypass at bound 4. It prints the means over seeds, and the
seconds until the line through them reaches each of TARGETS, and the ratio to the synchronous one's;
in brackets the same for every seed alone; nan: never. --grade: grade, and train nothing.

processes: the first two of these ways alone, and the ratio of their step times.

staleness: pass@1 after equally many samples for answers that are exactly 0, 4 and 16 steps old
(`engine.staleness`) with grpo, areal_decoupled_ppo and vcpo; mean over seeds, least and most.
Two runs at once, with one thread each; times mean nothing here.
"""

import argparse
import concurrent.futures
import itertools
import json
import math
import statistics
from pathlib import Path
from typing import NamedTuple

from processes import output_of
from processes import train as train_in_processes

from strop.tracking.metrics_file import read_metrics

WARM = 3  # steps
NAMES = ("step", "rollout", "update", "engine idle", "trainer idle", "age")
PLAIN = "grpo(num_prompts=16, num_rollouts=8)"
DECOUPLED = "areal_decoupled_ppo(num_prompts=16, num_rollouts=8, num_minibatches=1)"
BYPASS = "rollout_correction_bypass(num_prompts=16, num_rollouts=8)"
APRIL = "april_partial_rollout(num_prompts=16, chunk=32, num_rollouts=8)"
AGES = (0, 4, 16)
METHODS = {  # each makes one update a step
    "grpo": PLAIN, "areal_decoupled_ppo": DECOUPLED, "vcpo": "vcpo(num_prompts=16, num_rollouts=8)",
}  # fmt: skip


class Way(NamedTuple):
    """How a run is started."""

    method: str
    threads: int
    bound: int = 0
    processes: int = 1
    age: int = 0


SYNCHRONOUS = {"one process": Way(PLAIN, 2), "two processes": Way(PLAIN, 1, processes=2)}
SPEED = {
    **SYNCHRONOUS,
    "bound 1": Way(PLAIN, 2, 1),
    "bound 4": Way(PLAIN, 2, 4),
    "decoupled, bound 1": Way(DECOUPLED, 2, 1),
    "decoupled, bound 4": Way(DECOUPLED, 2, 4),
    "bypass, bound 4": Way(BYPASS, 2, 4),
    "partial": Way(APRIL, 2),
    "partial, bound 1": Way(APRIL, 2, 1),
    "one thread": Way(PLAIN, 1),
}
SUCCESS = {name: SPEED[name] for name in ("two processes", "bound 1", "bypass, bound 4")}
TARGETS = (0.24, 0.26, 0.28, 0.3)


def train(folder: Path, seed: int, way: Way, options: argparse.Namespace) -> None:
    """Trains a run in new processes, unless it exists."""
    train_in_processes(
        folder, way.method, "--model", "tiny-worked", "--quiet",
        f"seed={seed}", f"threads={way.threads}", f"training.max_staleness={way.bound}",
        f"engine.staleness={way.age}", f"training.steps={options.steps}", "training.lr=3e-4",
        "evaluation.every=0", "training.rollouts_every=0", "training.keep_checkpoints=100",
        f"training.save_every={options.every}",
        "training.inspect=0", *options.words, processes=way.processes,
        OMP_NUM_THREADS=str(way.threads),
    )  # fmt: skip


def numbers(folder: Path) -> dict[str, float]:
    """A run's cells of the table."""
    steps = [line for line in read_metrics(folder) if line["step"] > WARM]

    def mean(name: str) -> float:
        return statistics.mean(line.get(name, 0.0) for line in steps)

    return {
        "step": mean("step_time"),
        "rollout": mean("timing_s/rollout") + mean("timing_s/reward"),
        "update": mean("timing_s/update"),
        "engine idle": mean("asynchronous/collector_idle"),
        "trainer idle": mean("asynchronous/trainer_idle"),
        "age": mean("sampling/age_steps"),
    }


def score(folder: Path, step: int, options: argparse.Namespace) -> float:
    """pass@1 of the run's checkpoint of a step (0: of its initial weights); cached in a file."""
    kept = folder / f"pass@1-{step}-of-{options.puzzles}.json"
    if not kept.exists():
        words = [
            "eval", str(folder), "--k", "1", "--split", "heldout", "--samples", "4",
            "--prompts", str(options.puzzles), "--json",
            *(["--step", str(step)] if step else ["--start"]),
        ]  # fmt: skip
        kept.write_text(output_of("-m", "strop", *words), encoding="utf-8")
    return float(json.loads(kept.read_text(encoding="utf-8"))["pass@1"])


def course(folder: Path, options: argparse.Namespace) -> list[tuple[float, float]]:
    """(seconds of steps, pass@1) every `options.every` steps."""
    spent = [0.0, *(line["step_time"] for line in read_metrics(folder) if line["step"])]
    return [
        (sum(spent[: step + 1]), score(folder, step, options))
        for step in range(0, options.steps + 1, options.every)
    ]


def seconds_until(points: list[tuple[float, float]], target: float) -> float:
    """When the line through the points reaches the target; nan: never."""
    for (then, before), (now, after) in itertools.pairwise(points):
        if before < target <= after:
            return then + (now - then) * (target - before) / (after - before)
    return math.nan


def medians(ways: dict[str, Way], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Makes the runs, one after another, and takes the medians of each way."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for seed in range(options.repeats):
        for name in sorted(ways, reverse=seed % 2 == 1):
            folder = options.out / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
            train(folder, seed, ways[name], options)
            found[name].append(numbers(folder))
    return {
        name: {key: statistics.median(run[key] for run in runs) for key in NAMES}
        for name, runs in found.items()
    }


def speed(options: argparse.Namespace) -> None:
    """Prints the table and the bound."""
    middle = medians(SPEED, options)
    best = min(SYNCHRONOUS, key=lambda name: middle[name]["step"])
    print(f"{'':18s}" + "".join(f"{name:>13s}" for name in (*NAMES, "speed")))
    for name, row in middle.items():
        cells = [*(row[key] for key in NAMES), middle[best]["step"] / row["step"]]
        print(f"{name:18s}" + "".join(f"{cell:13.3f}" for cell in cells))
    alone = middle["one thread"]
    longest = max(alone["rollout"], alone["step"] - alone["rollout"])
    most = middle[best]["step"] / longest
    print(f"answers are {alone['rollout'] / alone['step']:.0%} of a step of one thread")
    print(f"at most: {most:.3f} of {best}, the best synchronous one; reached of it:")
    for name in (name for name, way in SPEED.items() if way.bound):
        print(f"    {name:18s}{middle[best]['step'] / middle[name]['step'] / most:.0%}")


def success(options: argparse.Namespace) -> None:
    """Prints seconds to equal success."""
    folders: dict[str, list[Path]] = {name: [] for name in SUCCESS}
    for seed in range(options.repeats):
        for name in sorted(SUCCESS, reverse=seed % 2 == 1):
            folder = options.out / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
            folders[name].append(folder)
            if not options.grade:
                train(folder, seed, SUCCESS[name], options)
    seeds = {name: [course(each, options) for each in found] for name, found in folders.items()}
    means: dict[str, list[tuple[float, float]]] = {}
    for name, found in seeds.items():
        together = [zip(*points, strict=True) for points in zip(*found, strict=True)]
        means[name] = [(statistics.mean(x), statistics.mean(y)) for x, y in together]
        print(f"{name:18s}" + "  ".join(f"{spent:.0f} s {y:.3f}" for spent, y in means[name]))
    first = next(iter(SUCCESS))
    for target in TARGETS:
        print(f"seconds to {target}, and how much sooner than {first}")
        for name in SUCCESS:
            taken, base = (seconds_until(means[each], target) for each in (name, first))
            alone = ", ".join(f"{seconds_until(points, target):.0f}" for points in seeds[name])
            print(f"    {name:18s}{taken:7.1f}{base / taken:7.2f}   ({alone})")


def processes(options: argparse.Namespace) -> None:
    """Compares one process with two, on both cores."""
    middle = medians(SYNCHRONOUS, options)
    for name, row in middle.items():
        print(f"{name:18s}" + "".join(f"{key} {row[key]:.3f}  " for key in NAMES[:3]))
    one, two = (middle[name]["step"] for name in SYNCHRONOUS)
    print(f"a step in two processes takes {two / one:.3f} of one in one")


def staleness(options: argparse.Namespace) -> None:
    """Prints success at equal samples, by method and age."""
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
            folders = [jobs[method, age, seed] for seed in range(options.repeats)]
            found = [score(folder, options.steps, options) for folder in folders]
            low, high = min(found), max(found)
            cells.append(f"{statistics.mean(found):.3f} ({low:.3f} to {high:.3f})")
        print(f"{method:24s}" + "".join(f"{cell:>26s}" for cell in cells))


def main() -> None:
    """Train, then print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tables = {
        "speed": speed, "success": success, "processes": processes, "staleness": staleness,
    }  # fmt: skip
    parser.add_argument("table", choices=tables)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--every", type=int, default=16, help="steps between checkpoints")
    parser.add_argument("--puzzles", type=int, default=512, help="held-out puzzles for grading")
    parser.add_argument("--grade", action="store_true", help="for success: train nothing")
    options, options.words = parser.parse_known_args()
    if options.steps <= WARM + max(AGES if options.table == "staleness" else (0,)):
        parser.error("--steps: must exceed the steps that are left out")
    print(f"{options.table}: {options.steps} steps, {options.repeats} seeds; {options.words}")
    tables[options.table](options)


if __name__ == "__main__":
    main()
