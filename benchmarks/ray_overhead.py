"""The overhead of a run on Ray over the same run in one process: the ratio of step times.

    python benchmarks/ray_overhead.py --out FOLDER [--steps 12] [--engines 1] [OPTION=VALUE ...]

Trains `grpo` on `tiny-worked`, whose answers have a long tail of 20 to 160 tokens, twice at once:
in this process, and with engines of `--ray local`. The runs take turns step by step, so that both
meet the same noise of the machine. All engines together have as many threads as the run in one
process, since trainer and engines take turns too. It prints medians over all steps but the first
two:

    step         seconds of a step
    rollout      of these, seconds for the answers
    update       seconds for the update
    ratio        seconds of a step on Ray / of the same step in one process; quartiles beside it
"""

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

import torch

from strop.api.options import settings_of
from strop.training import loop

WARM = 2  # steps
COLUMNS = {"step": "step_time", "rollout": "timing_s/rollout", "update": "timing_s/update"}
PLAIN = (
    "evaluation.every=0", "training.rollouts_every=0", "training.save_every=0", "training.inspect=0"
)  # fmt: skip


class Silent(loop.Watcher):
    """Shows nothing."""


def started(folder: Path, words: list[str]) -> tuple[loop.Run, Iterator[dict[str, float]]]:
    """A run and its steps, which are made on demand."""
    settings = settings_of([*PLAIN, *words], {"model": {"name": "tiny-worked"}}, None)
    run = loop.start(settings, folder)
    return run, loop.steps(run, Silent(), lambda *_: {})


def main() -> None:
    """Train, then print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--engines", type=int, default=1)
    options, words = parser.parse_known_args()
    words = [f"training.steps={options.steps}", *words]
    each = max(torch.get_num_threads() // options.engines, 1)
    ray = ["ray.address=local", f"ray.num_engines={options.engines}", f"ray.cpus_per_engine={each}"]
    found: dict[str, list[dict[str, float]]] = {"in one process": [], "on Ray": []}
    runs = {
        "in one process": started(options.out / "here", words),
        "on Ray": started(options.out / "ray", [*words, *ray]),
    }
    try:
        for step in range(options.steps):
            for name in sorted(runs, reverse=step % 2 == 1):
                found[name].append(next(runs[name][1]))
    finally:
        for run, _ in runs.values():
            run.close()
    found = {name: rows[WARM:] for name, rows in found.items()}
    print(f"{' '.join(words)}: {options.engines} engines of {each} threads")
    print(f"{'':16s}" + "".join(f"{name:>10s}" for name in COLUMNS))
    for name, rows in found.items():
        middle = (statistics.median(row[metric] for row in rows) for metric in COLUMNS.values())
        print(f"{name:16s}" + "".join(f"{value:10.3f}" for value in middle))
    here, there = found.values()
    ratios = [b["step_time"] / a["step_time"] for a, b in zip(here, there, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"ratio {middle:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
