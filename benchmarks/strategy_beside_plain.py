"""Cost and effect of a rollout strategy, compared with plain answers: tokens, time, distinctness.

    python benchmarks/strategy_beside_plain.py METHOD [--plain grpo] --out FOLDER [--seeds 3]
        [--steps 40] [OPTION=VALUE, further words of strop train]

    # with answers that are not waited for, if a few are long (tiny's own answers are all short)
    python benchmarks/strategy_beside_plain.py 'april_partial_rollout(chunk=16, num_prompts=8)' \\
        --plain 'grpo(num_prompts=8, num_rollouts=8)' --out runs/partial rollout.temperature=1.5 \\
        rollout.max_tokens=48

    # with prefixes that fork, against plain answers of as many tokens
    python benchmarks/strategy_beside_plain.py 'latr(r=(3, 5), eta=0.5, beta=0.0)' \\
        --plain 'grpo(num_rollouts=8)' --out runs/fork

    # with half of the answers stopped early: tokens until the same pass@1
    python benchmarks/strategy_beside_plain.py 'arrol(L_detect=4)' --out runs/prune --every 5

Trains both methods with the same seeds and options, in turn, so that a busy machine affects both
alike. Times leave out the first steps. Then it prints both, and the ratio of METHOD to plain:

    drawn tokens     per step, with those in no answer; tokens that answers share count once
    rollout, step    seconds of a step for its answers, and for all of it
    tokens/s         drawn tokens / seconds of the answers
    groups/s         groups trained on / seconds of the answers
    longest / mean   tokens of a step's longest answer / of its mean one
    distinct         different answers of a group
    at equal tokens  the same among as many answers as the thriftier method's tokens pay for
    pass@1           on the validation rows at the end
    tokens to equal  drawn until pass@1 is as high as both methods get in that seed; give --every
"""

import argparse
import math
import statistics
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
from processes import train

from strop.tracking.metrics_file import read_metrics

WARM = 2  # steps
SCORE = "eval/validation/pass@1"
DRAWN = ("data/tokens_sampled", "rollout/tokens_thrown_away")
HEAD = (
    "drawn tokens", "rollout", "step", "tokens/s", "groups/s", "longest / mean", "distinct",
    "at equal tokens", "pass@1", "tokens to equal",
)  # fmt: skip


def groups_of(folder: Path) -> list[list[str]]:
    """The answers of every group of every step."""
    found: dict[tuple[int, int, int], list[str]] = {}
    for path in sorted((folder / "rollouts").glob("*.parquet")):
        table = pq.read_table(path, columns=["step", "uid", "draw", "completion"])
        for row in table.to_pylist():
            key = (row["step"], row["uid"], row["draw"])
            found.setdefault(key, []).append(row["completion"])
    return list(found.values())


def distinct_among(answers: list[str], number: float) -> float:
    """Mean number of different answers among `number` of these, drawn without replacement.

    Between two whole numbers it is interpolated linearly.
    """
    low = min(math.floor(number), len(answers))
    share = min(number, len(answers)) - low

    def among(size: int) -> float:
        total = math.comb(len(answers), size)
        counts = Counter(answers).values()
        return sum(1 - math.comb(len(answers) - count, size) / total for count in counts)

    return among(low) + (share * (among(low + 1) - among(low)) if share else 0.0)


def drawn(line: dict[str, float]) -> float:
    """Tokens that the engine sampled for a step's rollouts, whatever became of them."""
    return sum(line.get(name, 0.0) for name in DRAWN)


def best_of(folder: Path) -> float:
    """The highest pass@1 of a run."""
    return max((line[SCORE] for line in read_metrics(folder) if SCORE in line), default=math.nan)


def tokens_to(folder: Path, score: float) -> float:
    """Tokens drawn until the first validation with at least that pass@1."""
    spent = 0.0
    for line in read_metrics(folder):
        spent += drawn(line) if line["step"] else 0.0
        if line.get(SCORE, -1.0) >= score:
            return spent
    return math.nan


def numbers(
    folder: Path, tokens: dict[str, float], method: str, reached: float
) -> dict[str, float]:
    """A run's cells; tokens: drawn per group, by method; reached: the pass@1 that both reach."""
    lines = read_metrics(folder)
    steps = [line for line in lines if line["step"] > WARM]
    groups = groups_of(folder)
    of_step = [drawn(line) for line in steps]
    seconds = [line["timing_s/rollout"] for line in steps]
    trained = len(groups) / len(lines_of_steps(lines))
    share = min(tokens.values()) / tokens[method]
    return {
        "drawn tokens": statistics.mean(of_step),
        "rollout": statistics.mean(seconds),
        "step": statistics.mean(line["step_time"] for line in steps),
        "tokens/s": sum(of_step) / sum(seconds),
        "groups/s": trained * len(steps) / sum(seconds),
        "longest / mean": statistics.mean(
            line["completions/max_length"] / line["completions/mean_length"] for line in steps
        ),
        "distinct": statistics.mean(len(set(group)) for group in groups),
        "at equal tokens": statistics.mean(
            distinct_among(group, share * len(group)) for group in groups
        ),
        "pass@1": lines[-1].get(SCORE, math.nan),
        "tokens to equal": tokens_to(folder, reached),
    }


def lines_of_steps(lines: list[dict[str, float]]) -> list[dict[str, float]]:
    """The lines of steps, without that of step 0."""
    return [line for line in lines if line["step"] > 0]


def tokens_of_a_group(folders: list[Path]) -> float:
    """Drawn tokens per group, over several runs of a method."""
    spent = sum(drawn(line) for folder in folders for line in lines_of_steps(read_metrics(folder)))
    return spent / sum(len(groups_of(folder)) for folder in folders)


def main() -> None:
    """Train, then print means over the seeds and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("method")
    parser.add_argument("--plain", default="grpo")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=0, help="steps between validations")
    options, options.words = parser.parse_known_args()
    methods = {"plain": options.plain, "method": options.method}
    folders = {
        name: [options.out / f"{name}-{seed}" for seed in range(options.seeds)] for name in methods
    }
    for seed in range(options.seeds):
        for name in sorted(methods, reverse=seed % 2 == 1):
            train(
                folders[name][seed], methods[name], "--quiet", f"training.steps={options.steps}",
                f"seed={seed}", f"evaluation.every={options.every or options.steps}",
                "training.rollouts_every=1", "training.save_every=0", "training.inspect=0",
                *options.words,
            )  # fmt: skip
    tokens = {name: tokens_of_a_group(folders[name]) for name in methods}
    pairs = zip(*folders.values(), strict=True)
    reached = [min(map(best_of, pair)) for pair in pairs]
    found = {
        name: [
            numbers(folder, tokens, name, score)
            for folder, score in zip(folders[name], reached, strict=True)
        ]
        for name in methods
    }
    print(f"plain: {options.plain}; method: {options.method}; {' '.join(options.words)}")
    print(f"{options.seeds} seeds, {options.steps} steps; means, and the ratio of each seed")
    for column in HEAD:
        plain, method = ([run[column] for run in found[name]] for name in ("plain", "method"))
        ratios = [m / p if p else math.nan for p, m in zip(plain, method, strict=True)]
        each = " ".join(f"{ratio:.3f}" for ratio in ratios)
        print(f"{column:16s} {statistics.mean(plain):10.3f} {statistics.mean(method):10.3f}"
              f"   {statistics.mean(ratios):.3f} ({each})")  # fmt: skip


if __name__ == "__main__":
    main()
