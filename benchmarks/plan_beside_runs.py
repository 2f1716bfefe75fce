"""What `strop plan` says beside what runs measure.

    python benchmarks/plan_beside_runs.py --out FOLDER [--steps 40] [--model tiny-worked]

A worker is one core. Two synchronous runs on one worker, with 16 prompts and with 4, give the
costs: where one core works, runs alone; where both do, runs with the same beside them, since two
cores that are at work slow each other down. Planned from them, and then run on an idle machine
with two cores:

    synchronous     one worker, 16 prompts again with another seed, and 8
    partial         april_partial_rollout, 16 prompts of 32 under way
    asynchronous    grpo with training.max_staleness 1 and 4: a worker generates, one trains
    both            april_partial_rollout with training.max_staleness=1

Prints seconds of a step, planned and measured (the mean without the first --settle steps), their
ratio, the same ratio when the plan has the run's own costs (which leaves out what the costs differ
by, as under another load; only synchronous runs tell them), and the idle share of engine and
trainer where they are apart. Exit code 1 where a ratio is off by more than --within (0.15). The
answers of a plan are those of the first run, so the learning rate is 0: all runs then draw from one
distribution.
"""

import argparse
import concurrent.futures
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

from strop.planning.measured import measure
from strop.planning.simulate import Outcome, simulate
from strop.planning.work import Layout

SIZE = 8  # answers to a prompt
LARGE, SMALL = 16, 4  # prompts of the runs that measure
LONG = 100  # steps of a plan
SPARE = 1.0  # prompts under way beyond a step's


def train(
    folder: Path, options: argparse.Namespace, method: str, threads: int, *words: str
) -> Path:
    """A run of its own process, unless it is there."""
    if not (folder / "report.html").exists():
        command = [
            sys.executable, "-m", "strop", "train", method, "--model", options.model,
            "--out", str(folder), "--quiet",
            f"threads={threads}", f"training.steps={options.steps}", "training.lr=0.0",
            "evaluation.every=0", "training.save_every=0", "training.inspect=0",
            "training.rollouts_every=1", *words,
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def costs_of(out: Path, options: argparse.Namespace, method: str, beside: bool) -> list[Path]:
    """The runs that measure, with 16 prompts and with 4; each with its like at the same time."""
    found = []
    for name, prompts in (("large", LARGE), ("small", SMALL)):
        folders = [out / (f"{name}-beside" if beside else name)]
        folders += [out / f"{name}-other"] * beside
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            jobs = [
                pool.submit(train, folder, options, method.format(prompts), 1, "seed=0")
                for folder in folders
            ]
            done = [job.result() for job in jobs]
            found.append(done[0])
    return found


def measured(folder: Path, settle: int) -> dict[str, float]:
    """Means over the steps of a run that has settled."""
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    steps = [line for line in lines if line["step"] > settle]
    names = ("step_time", "timing_s/waiting", "asynchronous/collector_idle")
    return {name: statistics.mean(line.get(name, 0.0) for line in steps) for name in names}


def shown(name: str, plan: Outcome, own: float, run: dict[str, float], within: float) -> bool:
    """Print a line; whether the plan is near enough. own: seconds planned from the run itself."""
    ratio = plan.step_seconds / run["step_time"]
    line = f"{name:24s}{plan.step_seconds:10.3f}{run['step_time']:10.3f}{ratio:8.2f}"
    line += f"{own / run['step_time']:8.2f}"
    if not plan.layout.shared:
        waiting = run["timing_s/waiting"] / run["step_time"]
        idle = plan.shares["idle engines"], run["asynchronous/collector_idle"]
        line += "".join(f"{x:9.2f}" for x in (*idle, plan.shares["idle trainers"], waiting))
    print(line, flush=True)
    return abs(ratio - 1) <= within


def main() -> int:
    """Train, plan, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--settle", type=int, default=12)
    parser.add_argument("--model", default="tiny-worked")
    parser.add_argument("--within", type=float, default=0.15)
    options = parser.parse_args()
    plain = f"grpo(num_prompts={{}}, num_rollouts={SIZE})"
    april = f"april_partial_rollout(num_prompts={LARGE}, chunk={2 * LARGE}, num_rollouts={SIZE})"
    out = options.out
    costs = {beside: costs_of(out, options, plain, beside) for beside in (False, True)}
    runs: list[tuple[str, str, Layout, int, list[str]]] = [
        ("synchronous", plain.format(LARGE), Layout(1, 1), LARGE, []),
        ("synchronous, 8 prompts", plain.format(8), Layout(1, 1), 8, []),
        ("partial", april, Layout(1, 1, spare=SPARE), LARGE, []),
    ]
    for bound in (1, 4):
        words = [f"training.max_staleness={bound}"]
        layout = Layout(1, 1, False, bound)
        runs.append((f"async {bound}", plain.format(LARGE), layout, LARGE, words))
    both = Layout(1, 1, False, 1, SPARE)
    runs.append(("async 1, partial", april, both, LARGE, ["training.max_staleness=1"]))
    print(f"{'':24s}{'planned':>10s}{'measured':>10s}{'ratio':>8s}{'own':>8s}   idle: engine "
          "planned, measured; trainer planned, measured")  # fmt: skip
    near = []
    for name, method, layout, prompts, words in runs:
        folder = out / name.replace(", ", "-").replace(" ", "-")
        train(folder, options, method, 1 if layout.shared else 2, "seed=1", *words)
        known = measure(costs[not layout.shared], prompts=prompts)
        plan = simulate(known.costs, known.work, layout, LONG)
        own = math.nan
        if layout.shared and not layout.spare:
            itself = measure([folder])
            own = simulate(itself.costs, itself.work, layout, LONG).step_seconds
        near.append(shown(name, plan, own, measured(folder, options.settle), options.within))
    print(f"{sum(near)} of {len(near)} within {options.within:.0%}")
    return 0 if all(near) else 1


if __name__ == "__main__":
    sys.exit(main())
