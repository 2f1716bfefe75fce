"""Methods beside each other on the shipped model: paired seeds, equal steps.

    python benchmarks/laboratory.py --out lab [--seeds 5] [--steps 200] [--scored 100,200]
        [--set NAME=VALUE ...] [--k 1,16,64] [--data FILE] [--mean METRIC ...] [--csv FILE]
        [METHOD ...]

METHOD is a recipe in one-line notation. Every run is a plain `strop train` with one thread, a
constant learning rate and a checkpoint every 100 steps; runs that are already complete in the
folder are not repeated, and a longer run counts for a shorter one, since it passes the same point.
Every checkpoint named by --scored (default: the last) is scored on the held-out prompts (or the
rows of --data) with as many answers each as the largest k. Per method and scored step it prints the
mean over seeds with a Student-t interval of: entropy in the last 10 steps, the share of steps
inside the band and below it (0.3 to 0.4 nats unless given; the first quarter of the steps, the way
to the band, does not count), the mean over the steps of every metric named by --mean, pass@k and
distinct answers among 16; and paired differences from the first method at the same step, or, for
the first method, from its first scored step.
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from strop.evaluation.seeds import SeedEstimate, over_seeds, paired_difference

EVERY = 100  # steps between checkpoints


class Row(NamedTuple):
    """What one run had reached at one step."""

    method: str
    seed: int
    step: int
    found: dict[str, float]


def command(*arguments: str) -> str:
    """Run strop with one thread; the error stream ends the program."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "strop", *arguments],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"strop {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


def folder_of(out: Path, method: str, seed: int) -> Path:
    """Where the run of a method with a seed lies."""
    return out / f"{re.sub(r'[^A-Za-z0-9]+', '_', method).strip('_')}-{seed}"


def one(job: tuple[str, int, argparse.Namespace]) -> list[Row]:
    """Train (unless done) and score one method with one seed."""
    method, seed, options = job
    folder = folder_of(options.out, method, seed)
    if not (folder / "report.html").exists():
        if (folder / "config.toml").exists():
            command("train", "--resume", str(folder), "--quiet")
        else:
            command(
                "train", method, f"training.steps={options.steps}", f"training.lr={options.lr}",
                "evaluation.every=0", f"training.save_every={EVERY}", "training.rollouts_every=0",
                f"training.keep_checkpoints={options.steps // EVERY + 1}", f"seed={seed}",
                *options.set, "--quiet", "--out", str(folder),
            )  # fmt: skip
    rows = []
    for step in options.scored or [options.steps]:
        cache = folder / f"heldout-{step}.json"
        scores = scored(cache, options, str(folder), "--step", str(step))
        rows.append(Row(method, seed, step, {**course(folder, step, options), **scores}))
        shown = {name: round(value, 3) for name, value in rows[-1].found.items()}
        print(f"{method} seed {seed} step {step}: {shown}", flush=True)
    return rows


def scored(cache: Path, options: argparse.Namespace, *source: str) -> dict[str, float]:
    """Held-out scores of a run's checkpoint or a model, kept in a file."""
    if not cache.exists():
        most = str(max(options.k))
        ks = ",".join(map(str, options.k))
        data = [piece for file in options.data for piece in ("--data", file)]
        cache.write_text(command("eval", *source, "--k", ks, "--samples", most, "--json", *data))
    found: dict[str, float] = json.loads(cache.read_text())
    names = (*(f"pass@{k}" for k in options.k), "distinct@16")
    return {name: found[name] for name in names if name in found}


def course(folder: Path, step: int, options: argparse.Namespace) -> dict[str, float]:
    """The way to a step: entropy at its end and inside the band, means of the chosen metrics."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if 0 < line["step"] <= step]
    assert len(lines) == step, f"{folder} has {len(lines)} of {step} steps"
    found = {name: sum(line[name] for line in lines) / step for name in options.mean}
    entropy = [line["entropy"] for line in lines if line.get("entropy") is not None]
    if len(entropy) < step:  # nothing is sampled where answers are given
        return found
    late = entropy[step // 4 :]
    return {
        "entropy/end": sum(entropy[-10:]) / 10,
        "band/share": sum(options.low <= h <= options.high for h in late) / len(late),
        "band/below": sum(h < options.low for h in late) / len(late),
        **found,
    }


def show(rows: list[Row], options: argparse.Namespace) -> None:
    """One table per method and step; differences are paired by seed.

    A method is compared with the first one at the same step, the first one with its first step.
    """
    steps = options.scored or [options.steps]
    for method in options.methods:
        for step in steps:
            other = (options.methods[0], step if method != options.methods[0] else steps[0])
            print(f"\n{method}, step {step}")
            for name in dict.fromkeys(name for row in rows for name in row.found):
                ours, theirs = (
                    [r.found.get(name) for r in rows if (r.method, r.step) == point]
                    for point in ((method, step), other)
                )
                if None in ours or None in theirs:
                    continue
                text = _interval(over_seeds(ours), "{:.3f} ({:.3f} to {:.3f})")
                if other != (method, step):
                    gap = paired_difference(ours, theirs)
                    text += _interval(gap, "; difference {:+.3f} ({:+.3f} to {:+.3f})")
                print(f"  {name:18s} {text}")


def _interval(estimate: SeedEstimate, form: str) -> str:
    return form.format(estimate.value, estimate.low, estimate.high)


def write(rows: list[Row], path: Path) -> None:
    """One line per run and scored step."""
    with path.open("w", newline="") as stream:
        table = csv.writer(stream, lineterminator="\n")
        names = list(dict.fromkeys(name for row in rows for name in row.found))
        table.writerow(["method", "seed", "step", *names])
        for row in rows:
            values = [f"{row.found[n]:.4f}" if n in row.found else "" for n in names]
            table.writerow([row.method, row.seed, row.step, *values])


def main() -> None:
    """Run all jobs and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--scored", type=lambda text: [int(x) for x in text.split(",")])
    parser.add_argument("--lr", default="3e-4")
    parser.add_argument("--set", action="append", default=[], help="a setting of every run")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--low", type=float, default=0.3, help="lower edge of the band, nats")
    parser.add_argument("--high", type=float, default=0.4, help="upper edge of the band, nats")
    parser.add_argument(
        "--k", type=lambda text: [int(x) for x in text.split(",")], default=[1, 16, 64],
        help="k of pass@k",
    )  # fmt: skip
    parser.add_argument("--data", action="append", default=[], help="score on the rows of a file")
    parser.add_argument("--start", action="store_true", help="score the shipped model first")
    parser.add_argument("--mean", action="append", default=[], help="show a metric's mean")
    parser.add_argument("--csv", type=Path, help="also write the numbers of every run here")
    parser.add_argument("methods", nargs="*", default=["grpo"])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.start:
        print("before training:", scored(options.out / "start.json", options, "tiny"))
    jobs = [(m, s, options) for s in range(options.seeds) for m in options.methods]
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = [row for found in pool.map(one, jobs) for row in found]
    show(rows, options)
    if options.csv:
        write(rows, options.csv)


if __name__ == "__main__":
    main()
