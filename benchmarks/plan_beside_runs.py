"""The step times that `strop plan` predicts, compared with measured runs.

    python benchmarks/plan_beside_runs.py --out FOLDER [--steps 28] [--model tiny-worked]

A worker is one core. Costs are measured in

    alone    synchronous runs on one worker, with 16 prompts and with 4
    beside   the same, each with a copy of itself at the same time: two busy cores slow each other
    unlike   asynchronous runs with a bound of 2: one worker generates while the other trains

One run of `alone` and of `unlike` comes before the runs that are planned from it, and one after
them, since a machine's speed changes from one minute to the next.

The following layouts are planned, and then run on an idle machine with two cores:

    synchronous     one worker, 16 prompts again with another seed, and 8
    partial         april_partial_rollout, 16 prompts of 32 in flight
    asynchronous    grpo with training.max_staleness 1 and 4
    both            april_partial_rollout with training.max_staleness=1

First come the costs. Then come seconds of a step, planned and measured (without the first --settle
steps, and without the last few, for which nothing is started any more), and their ratio: layouts on
one core are planned from the costs of runs alone, those on two from the asynchronous run's. `like`
is the ratio from the costs of runs beside their copies; where it is lower, the difference is due to
unlike work on the two cores, and to caches whose rows differ more. `own` is the ratio from the
run's own costs, so that only the plan itself can be wrong. Then, for separate engine and trainer,
come their idle shares.

The exit code is 1 if a ratio is off by more than --within (0.15). A plan takes the answers of the
first run, so the learning rate is 0: all runs then sample from one distribution.
"""

import argparse
import concurrent.futures
import math
import statistics
import sys
from pathlib import Path

import processes

from strop.planning.measured import Measured, measure
from strop.planning.simulate import Outcome, simulate
from strop.planning.work import Costs, Layout
from strop.tracking.metrics_file import read_metrics

SIZE = 8  # answers to a prompt
LARGE, SMALL = 16, 4  # prompts of the measuring runs
UNLIKE = 2  # the bound of the asynchronous one
ROWS, TOKENS = 105, 3800  # of the decode step that is shown, as occurs at a bound of 4
ENDING = 5  # last steps of a run: while they are trained, engines run empty
ROW = 4  # steps in a row over which the mean is taken
LONG = 100  # steps of a plan
SPARE = 1.0  # prompts in flight beyond a step's
PLAIN = f"grpo(num_prompts={{}}, num_rollouts={SIZE})"
APRIL = f"april_partial_rollout(num_prompts={LARGE}, chunk={2 * LARGE}, num_rollouts={SIZE})"


def train(
    folder: Path, options: argparse.Namespace, method: str, threads: int, *words: str
) -> Path:
    """Trains a run in a process of its own, unless it exists."""
    return processes.train(
        folder, method, "--model", options.model, "--quiet", f"threads={threads}",
        f"training.steps={options.steps}", "training.lr=0.0", "evaluation.every=0",
        "training.save_every=0", "training.inspect=0", "training.rollouts_every=1", *words,
    )  # fmt: skip


def twice(options: argparse.Namespace, name: str, prompts: int) -> Path:
    """A synchronous run with a copy of itself at the same time."""
    method = PLAIN.format(prompts)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(train, options.out / f"{name}-{which}", options, method, 1, "seed=0")
            for which in ("beside", "other")
        ]
        done = [job.result() for job in jobs]
    return done[0]


def measured(folder: Path, settle: int) -> dict[str, float]:
    """For a run that has settled: the medians of means over every few steps in a row."""
    lines = read_metrics(folder)
    steps = [line for line in lines if settle < line["step"] <= lines[-1]["step"] - ENDING]
    names = ("step_time", "timing_s/waiting", "asynchronous/collector_idle",
             "perf/decode/places", "perf/decode/tokens")  # fmt: skip
    windows = [steps[first : first + ROW] for first in range(len(steps) - ROW + 1)]
    return {
        name: statistics.median(
            statistics.mean(line.get(name, 0.0) for line in window) for window in windows
        )
        for name in names
    }


def show_costs(name: str, costs: Costs, folder: Path) -> None:
    """Print one line, in milliseconds and microseconds."""
    speed, run = costs.speed, measured(folder, 0)
    decode = speed.step + speed.row * ROWS + speed.cached * TOKENS
    read = run["perf/decode/places"] / run["perf/decode/tokens"]
    print(f"{name:24s}{decode * 1e3:10.2f}{speed.step * 1e3:8.2f}{speed.row * 1e6:8.1f}"
          f"{speed.cached * 1e6:8.3f}{read:8.2f}{speed.begin * 1e3:8.2f}{speed.read * 1e6:8.1f}"
          f"{speed.answer * 1e6:8.0f}{costs.reward * 1e6:8.0f}{costs.token * 1e6:8.1f}"
          f"{costs.rest * 1e3:8.1f}", flush=True)  # fmt: skip


def shown(
    name: str, plan: Outcome, like: float, own: float, run: dict[str, float], within: float
) -> bool:
    """Print one line; returns whether the plan is near enough. like, own: by other costs."""
    ratio = plan.step_seconds / run["step_time"]
    line = f"{name:24s}{plan.step_seconds:10.3f}{run['step_time']:10.3f}{ratio:8.2f}"
    line += f"{like / run['step_time']:8.2f}{own / run['step_time']:8.2f}"
    if not plan.layout.shared:
        waiting = run["timing_s/waiting"] / run["step_time"]
        idle = plan.shares["idle engines"], run["asynchronous/collector_idle"]
        line += "".join(f"{x:9.2f}" for x in (*idle, plan.shares["idle trainers"], waiting))
    print(line, flush=True)
    return abs(ratio - 1) <= within


def planned(known: Measured, layout: Layout) -> Outcome:
    """Plan a layout with the costs of its kind."""
    return simulate(known.costs_of(layout), known.work, layout, LONG)


def trained(
    options: argparse.Namespace,
) -> tuple[dict[str, list[Path]], list[tuple[Path, Layout, int]]]:
    """The measuring runs, by kind, and the planned runs, with layouts and prompts."""
    bound = "training.max_staleness={}".format
    large, small = PLAIN.format(LARGE), PLAIN.format(SMALL)

    def run(name: str, method: str, *words: str) -> Path:
        return train(options.out / name, options, method, 2 if words[1:] else 1, *words)

    alone = [run("large", large, "seed=0"), run("small", small, "seed=0")]
    beside = [twice(options, "large", LARGE), twice(options, "small", SMALL)]
    runs = [
        (run("synchronous", large, "seed=1"), Layout(1, 1), LARGE),
        (run("synchronous-8-prompts", PLAIN.format(8), "seed=1"), Layout(1, 1), 8),
        (run("partial", APRIL, "seed=1"), Layout(1, 1, spare=SPARE), LARGE),
    ]
    alone.append(run("large-again", large, "seed=0"))
    unlike = [run("unlike", large, "seed=0", bound(UNLIKE))]
    both = Layout(1, 1, False, 1, SPARE)
    runs += [
        (run("async-1", large, "seed=1", bound(1)), Layout(1, 1, False, 1), LARGE),
        (run("async-4", large, "seed=1", bound(4)), Layout(1, 1, False, 4), LARGE),
        (run("async-1-partial", APRIL, "seed=1", bound(1)), both, LARGE),
    ]
    unlike.append(run("unlike-again", large, "seed=0", bound(UNLIKE)))
    return {"alone": alone, "beside": beside, "unlike": unlike}, runs


def main() -> int:
    """Train, plan and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--settle", type=int, default=8)
    parser.add_argument("--model", default="tiny-worked")
    parser.add_argument("--within", type=float, default=0.15)
    options = parser.parse_args()
    if options.steps < (least := options.settle + ENDING + ROW):
        parser.error(f"--steps {options.steps}: give {least} or more with --settle "
                     f"{options.settle}")  # fmt: skip
    costs, runs = trained(options)
    print(f"{'costs':24s}{f'{ROWS} rows':>10s}" + "".join(f"{each:>8s}" for each in (
        "ms step", "us row", "token", "read x", "ms read", "token", "answer", "reward", "train",
        "ms rest",
    )))  # fmt: skip
    for name, folders in costs.items():
        show_costs(name, measure(folders).costs, folders[0])
    for folder, layout, _ in runs:
        show_costs(folder.name, measure([folder]).costs_of(layout), folder)
    print(f"{'seconds of a step':24s}{'planned':>10s}{'measured':>10s}{'ratio':>8s}{'like':>8s}"
          f"{'own':>8s}   idle: engine planned, measured; trainer planned, measured")  # fmt: skip
    near = []
    for folder, layout, prompts in runs:
        plan = planned(measure([*costs["alone"], *costs["unlike"]], prompts=prompts), layout)
        like = math.nan
        if not layout.shared:
            like = planned(measure(costs["beside"], prompts=prompts), layout).step_seconds
        own = planned(measure([folder], prompts=prompts), layout).step_seconds
        told = measured(folder, options.settle)
        near.append(shown(folder.name, plan, like, own, told, options.within))
    print(f"{sum(near)} of {len(near)} within {options.within:.0%}")
    return 0 if all(near) else 1


if __name__ == "__main__":
    sys.exit(main())
