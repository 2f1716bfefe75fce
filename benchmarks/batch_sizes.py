"""Four batch sizes at equal numbers of answers: more minibatches, or larger ones at higher rates.

    python benchmarks/batch_sizes.py [--seeds 3] [--groups 1920] [--jobs 2] [--keep FOLDER]

`tiny` on Countdown sees --groups prompts with 8 answers each, in steps of 8, 16, 32 or 64 prompts.
In one arm every update has 8 prompts and a constant learning rate (`grpo`, 1, 2, 4 or 8 minibatches
a step, as arXiv 2603.06009 advises). In the next, a step has one update whose rate grows with the
root of its size. In the third, `ppo_ewma` clips around its average with 1, 2, 4 and 8 minibatches,
and its decay is raised to the power of the growth (arXiv 2110.00641). The output has pass@1 on
held-out puzzles after training (mean over seeds, least and largest), how far the updates of a step
move the policy from the clip's anchor (approx_kl; 0 if there is one update), answers per nat of
that, and the deviation of a step's mean reward over the last third.
"""

import argparse
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from machine import gflops
from processes import train

from strop.tracking.metrics_file import lines_of

SIZES, LEAST, ANSWERS, LR, DECAY = (8, 16, 32, 64), 8, 8, 3e-4, 0.889


def arms(size: int) -> dict[str, list[str]]:
    """The words of each arm at a size."""
    growth = size // LEAST
    return {
        "more minibatches": [f"grpo(num_minibatches={growth})", f"training.lr={LR}"],
        "a larger one": ["grpo(num_minibatches=1)", f"training.lr={LR * growth**0.5:.3g}"],
        "ppo_ewma": [
            f"ppo_ewma(num_minibatches={growth}, decay={DECAY**growth:.3f})", f"training.lr={LR}",
        ],
    }  # fmt: skip


def make(job: tuple[list[str], int, int, int, Path]) -> None:
    words, size, groups, seed, folder = job
    steps = groups // size
    train(
        folder, *words, f"seed={seed}", f"training.steps={steps}", f"evaluation.every={steps}",
        "evaluation.num_samples=8", f"sampling.num_prompts={size}",
        f"sampling.num_rollouts={ANSWERS}", "training.save_every=0", "training.inspect=0",
        "threads=1",
    )  # fmt: skip


def told(folders: list[Path], size: int) -> str:
    """The cells of a row, over the seeds."""
    scores, moved, spread = [], [], []
    for folder in folders:
        lines = [*lines_of(folder)]
        scores.append(lines[-1]["eval/validation/pass@1"])
        steps = [line for line in lines if line["step"]]
        late = steps[-len(steps) // 3 :]
        moved.append(statistics.mean(line.get("approx_kl") or 0.0 for line in late))
        spread.append(statistics.stdev(line["reward"] for line in late))
    kl = statistics.mean(moved)
    nats = f"{size * ANSWERS / kl:.0f}" if kl > 1e-9 else "-"
    return (
        f"{statistics.mean(scores):.3f} ({min(scores):.3f} to {max(scores):.3f}) | {kl:.2g} | "
        f"{nats} | {statistics.mean(spread):.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--groups", type=int, default=1920)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    if options.groups < 6 * max(SIZES):
        parser.error(f"--groups {options.groups}: give {6 * max(SIZES)} or more, for six steps")
    top = options.keep or Path(tempfile.mkdtemp())
    place = {(name, size, seed): top / f"{name.replace(' ', '_')}-{size}-{seed}"
             for size in SIZES for name in arms(size) for seed in range(options.seeds)}  # fmt: skip
    jobs = [(arms(size)[name], size, options.groups, seed, folder)
            for (name, size, seed), folder in place.items()]  # fmt: skip
    print(f"GFLOP/s before: {gflops():.0f}", flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(make, jobs))
    print("| prompts a step | arm | pass@1 | approx_kl | answers for a nat | deviation of reward |")
    print("| --- | --- | --- | --- | --- | --- |")
    for size in SIZES:
        for name in arms(size):
            folders = [place[name, size, seed] for seed in range(options.seeds)]
            print(f"| {size} | {name} | {told(folders, size)} |", flush=True)


if __name__ == "__main__":
    main()
