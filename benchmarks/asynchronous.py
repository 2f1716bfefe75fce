"""Collecting rollouts beside training: how much faster is it, and does it learn the same?

    python benchmarks/asynchronous.py --out FOLDER [--staleness 0,1,4] [--steps 60] [--repeats 3]
        [--every 20] [--target 0.3] [METHOD] [OPTION=VALUE ...]

Trains METHOD (grpo) on `tiny-worked` with each bound in turn, `--repeats` times with other seeds,
on all cores: 0 takes turns, all others have a process that collects. Prints medians over repeats:

    step         seconds of a step, the first three left out
    rollout      of these, seconds for the answers: in the collecting process where there is one
    update       seconds for the update
    waiting      seconds for which the trainer waited
    idle         share of the time for which the collecting process waited for weights
    age          mean age of the tokens, in steps
    to target    seconds of steps until pass@1 of the validation reaches --target; nan: never
    pass@1       of the validation at the end
    of 0         seconds of a step with the bound 0 / with this one

And what two processes with half of the threads each can give at most: with bound 0 and half of the
threads, the time of a step over the longer one of its two halves, answers and all else.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

WARM = 3  # steps
SCORE = "eval/validation/pass@1"
NAMES = ("step", "rollout", "update", "waiting", "idle", "age", "to target", "pass@1")


def train(
    folder: Path, seed: int, staleness: int, threads: int, options: argparse.Namespace
) -> None:
    """A run of its own process, unless it is there."""
    if (folder / "report.html").exists():
        return
    words = [
        "train", options.method, "--model", "tiny-worked", "--out", str(folder), "--quiet",
        f"seed={seed}", f"threads={threads}", f"training.max_staleness={staleness}",
        f"training.steps={options.steps}", f"evaluation.every={options.every}",
        "evaluation.num_samples=4", "evaluation.max_prompts=128", "training.rollouts_every=0",
        "training.save_every=0", "training.inspect=0", *options.words,
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "strop", *words], check=True)


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
        "waiting": mean("timing_s/waiting"),
        "idle": mean("asynchronous/collector_idle"),
        "age": mean("sampling/age_steps"),
        "to target": seconds_to(lines, target),
        "pass@1": lines[-1].get(SCORE, math.nan),
    }


def seconds_to(lines: list[dict[str, float]], target: float) -> float:
    """Seconds of steps until the first validation with that score."""
    spent = 0.0
    for line in lines:
        spent += line.get("step_time", 0.0) if line["step"] else 0.0
        if line.get(SCORE, -1.0) >= target:
            return spent
    return math.nan


def main() -> None:
    """Train, then print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("method", nargs="?", default="grpo")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--staleness", default="0,1,4")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--every", type=int, default=20, help="steps between validations; 0: none")
    parser.add_argument("--target", type=float, default=0.3, help="pass@1")
    options, options.words = parser.parse_known_args()
    if "=" in options.method:
        options.words, options.method = [options.method, *options.words], "grpo"
    cores = os.cpu_count() or 1
    bounds = [int(text) for text in options.staleness.split(",")]
    kinds = {f"bound {bound}": (bound, cores) for bound in bounds}
    kinds["bound 0, half"] = (0, max(cores // 2, 1))
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for seed in range(options.repeats):
        for kind in sorted(kinds, reverse=seed % 2 == 1):
            folder = options.out / f"{kind.replace(', ', '-').replace(' ', '-')}-{seed}"
            train(folder, seed, *kinds[kind], options)
            found[kind].append(numbers(folder, options.target))
    middle = {
        kind: {name: statistics.median(run[name] for run in runs) for name in NAMES}
        for kind, runs in found.items()
    }
    print(f"{options.method} {' '.join(options.words)}: {options.steps} steps, {cores} cores")
    print(f"{'':16s}" + "".join(f"{name:>10s}" for name in (*NAMES, "of 0")))
    for kind, row in middle.items():
        ratio = middle["bound 0"]["step"] / row["step"] if "bound 0" in middle else math.nan
        print(f"{kind:16s}" + "".join(f"{row[name]:10.3f}" for name in NAMES) + f"{ratio:10.3f}")
    if "bound 0" in middle:
        alone = middle["bound 0, half"]
        longest = max(alone["rollout"], alone["step"] - alone["rollout"])
        print(f"at most: {middle['bound 0']['step'] / longest:.3f} of bound 0")


if __name__ == "__main__":
    main()
