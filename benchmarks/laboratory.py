"""Entropy over training on the shipped model: several methods, paired seeds, equal steps.

    python benchmarks/laboratory.py --out lab [--seeds 5] [--steps 200] [--jobs 2] [METHOD ...]

METHOD is a recipe in one-line notation. Every run is a plain `strop train` with one thread; runs
that are already complete in the folder are not repeated. At the end it prints, per method, the
mean over seeds with a Student-t interval of: entropy at the start and the end, the share of steps
inside the band (0.3 to 0.4 nats unless given), held-out pass@1 and pass@16, and each method's
paired difference from the first one.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from strop.evaluation.seeds import over_seeds, paired_difference


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


def one(job: tuple[str, int, argparse.Namespace]) -> tuple[str, int, dict[str, float]]:
    """Train (unless done) and score one method with one seed."""
    method, seed, options = job
    folder = options.out / f"{re.sub(r'[^A-Za-z0-9]+', '_', method).strip('_')}-{seed}"
    if not (folder / "report.html").exists():
        if (folder / "config.toml").exists():
            command("train", "--resume", str(folder), "--quiet")
        else:
            command(
                "train", method, f"training.steps={options.steps}", f"training.lr={options.lr}",
                "evaluation.every=0", "training.save_every=0", f"seed={seed}", "--quiet",
                "--out", str(folder),
            )  # fmt: skip
    scored = folder / "heldout.json"
    if not scored.exists():
        scored.write_text(command("eval", str(folder), "--k", "1,16", "--json"))
    found = {**json.loads(scored.read_text()), **course(folder, options)}
    shown = {k: round(found[k], 3) for k in ("pass@1", "pass@16", "entropy/end", "band/share")}
    print(f"{method} seed {seed}: {shown}", flush=True)
    return method, seed, found


def course(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Entropy along the run: first and last 10 steps, share of steps inside the band."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    entropy = [row["entropy"] for row in rows if row["step"] > 0]
    late = entropy[len(entropy) // 4 :]  # the way from the start to the band does not count
    return {
        "entropy/start": sum(entropy[:10]) / 10,
        "entropy/end": sum(entropy[-10:]) / 10,
        "band/share": sum(options.low <= h <= options.high for h in late) / len(late),
        "band/below": sum(h < options.low for h in late) / len(late),
    }


def main() -> None:
    """Run all jobs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", default="3e-4")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--low", type=float, default=0.3, help="lower edge of the band, nats")
    parser.add_argument("--high", type=float, default=0.4, help="upper edge of the band, nats")
    parser.add_argument("methods", nargs="*", default=["grpo"])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    jobs = [(m, s, options) for s in range(options.seeds) for m in options.methods]
    with ThreadPoolExecutor(options.jobs) as pool:
        done = list(pool.map(one, jobs))
    found = {m: [values for method, _, values in done if method == m] for m in options.methods}
    for method, values in found.items():
        print(f"\n{method}")
        for name in ("entropy/start", "entropy/end", "band/share", "band/below", "pass@1",
                     "pass@16", "distinct@16"):  # fmt: skip
            print(f"  {name:14s} {_line([v[name] for v in values], found, method, name)}")


def _line(values: list[float], found: dict[str, Any], method: str, name: str) -> str:
    mean = over_seeds(values)
    text = f"{mean.value:.3f} ({mean.low:.3f} to {mean.high:.3f})"
    first = next(iter(found))
    if method == first or len(values) < 2:
        return text
    gap = paired_difference(values, [v[name] for v in found[first]])
    return f"{text}; against {first}: {gap.value:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})"


if __name__ == "__main__":
    main()
