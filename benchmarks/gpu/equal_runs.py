"""Do two equal runs on a GPU end with equal bits, by default and with full_determinism?

    python benchmarks/gpu/equal_runs.py [--steps 6] [--device cuda] [-- OPTIONS OF strop train]

Each of the four runs is `strop train` in a process of its own, grpo on `tiny-worked` with two
updates a step. It prints whether all weights and all metrics except times are equal, and the median
seconds of a step after the first, which show the cost of the deterministic operators. It exits with
1 if the two deterministic runs differ.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from command_line import device_here
from safetensors.torch import load_file

from strop.method.algorithm import APART

PLAIN = ("--model", "tiny-worked", "plan.num_minibatches=2", "evaluation.every=0",
         "training.save_every=0")  # fmt: skip


def run(folder: Path, options: argparse.Namespace, determined: bool) -> list[dict[str, Any]]:
    """The metrics of a run's steps."""
    command = [
        sys.executable, "-m", "strop", "train", *PLAIN, f"model.device={options.device}",
        f"training.steps={options.steps}", f"training.full_determinism={str(determined).lower()}",
        *options.more, "--out", str(folder),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    warned = {line for line in done.stderr.splitlines() if "deterministic" in line}
    for line in sorted(warned):
        print(f"  {line.strip()[:200]}")
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def differences(one: Path, other: Path) -> str:
    """How many weights differ, and by how much at most; empty if none does."""
    a, b = (sorted(each.glob("checkpoints/*/model.safetensors"))[-1] for each in (one, other))
    pairs = [(x, y) for (_, x), (_, y) in zip(
        sorted(load_file(a).items()), sorted(load_file(b).items()), strict=True
    )]  # fmt: skip
    number = sum(int((x != y).sum()) for x, y in pairs)
    most = max(float((x - y).abs().max()) for x, y in pairs)
    return f"{number} of {sum(x.numel() for x, _ in pairs)} weights, by {most:.1e} at most" * (
        number > 0
    )


def main() -> None:
    """Print one line per setting of full_determinism."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--device", type=device_here, default="cuda")
    parser.add_argument("more", nargs="*", help="options of strop train, after --")
    options = parser.parse_args()
    seconds, differ = {}, ""
    for determined in (False, True):
        with tempfile.TemporaryDirectory() as place:
            folders = [Path(place) / name for name in ("one", "other")]
            steps = [run(folder, options, determined) for folder in folders]
            differ = differences(*folders)
        known = [
            [{k: v for k, v in step.items() if not k.startswith(APART)} for step in each]
            for each in steps
        ]
        seconds[determined] = statistics.median(s["step_time"] for s in steps[0][1:] + steps[1][1:])
        metrics = "equal" if known[0] == known[1] else "differ"
        print(
            f"full_determinism={determined}: weights {f'differ: {differ}' if differ else 'equal'}; "
            f"metrics {metrics}; {seconds[determined]:.3f} s a step",
            flush=True,
        )
    print(f"it takes {seconds[True] / seconds[False]:.2f} times as long")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
