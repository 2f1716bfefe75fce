"""What a policy learns from a grader that breaks on some wrong answers.

    python benchmarks/failing_grader.py [--seeds 3] [--steps 90] [--keep FOLDER] [OPTION=VALUE ...]

Trains `grpo` on Countdown with the shipped model and a grader that raises an exception for wrong
answers with a minus sign, once with `reward.on_failure=unscored` and once with 0. For the last
sixth of the steps it prints, as means over seeds:

    success        right answers / answers, by the recorded rollouts
    reward         the logged `reward`: the mean over the policy's answers
    reward_judged  the mean over answers on which the grader did not break
    exception      share of answers on which it broke

Options are passed on to `strop train`.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from strop.environments.countdown import correct
from strop.evaluation.seeds import over_seeds
from strop.tracking.metrics_file import lines_of

KINDS = ("unscored", "0")
LOGGED = ("reward", "reward_judged", "exit/exception")


def compute_score(
    solution_str: str, numbers: Sequence[int], target: int, data_source: str = ""
) -> float:
    """As Countdown's own reward, but it breaks on a wrong answer with a minus sign."""
    (score,) = correct([""], [solution_str], [numbers], [target])
    if not score and "-" in solution_str:
        raise ValueError(f"cannot read {solution_str}")
    return score


def measure(folder: Path, steps: int) -> dict[str, float]:
    """The printed numbers of a run."""
    first = steps - max(steps // 6, 1)
    lines = [line for line in lines_of(folder) if line["step"] > first]
    found = {name: sum(line.get(name, 0.0) for line in lines) / len(lines) for name in LOGGED}
    shares = []
    for line in lines:
        table = pq.read_table(folder / "rollouts" / f"step-{line['step']:06d}.parquet")
        scores = table["reward/compute_score"].to_pylist()
        shares.append(sum(score == 1.0 for score in scores) / len(scores))
    return {"success": sum(shares) / len(shares), **found}


def main() -> None:
    """Print a line for each run and the means of each kind."""
    from processes import train  # runs, which load this file, cannot import it

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--keep", type=Path, help="store the runs in this folder")
    parser.add_argument("options", nargs="*")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp())
    for kind in KINDS:
        found = []
        for seed in range(given.seeds):
            run = folder / f"{kind}-{seed}"
            words = ["--reward", f"{Path(__file__).resolve()}:compute_score", f"seed={seed}",
                     f"reward.on_failure={kind}", f"training.steps={given.steps}",
                     "training.rollouts_every=1", "training.inspect=0", "evaluation.every=0",
                     "reward.max_unscored_share=1.0", *given.options]  # fmt: skip
            found.append(measure(train(run, *words), given.steps))
            print(f"{kind} seed {seed}: {_text(found[-1])}", flush=True)
        means = {name: over_seeds([each[name] for each in found]) for name in found[0]}
        print(f"{kind}: " + ", ".join(
            f"{name} {mean:.3f}" for name, mean in means.items()
        ))  # fmt: skip


def _text(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items())


if __name__ == "__main__":
    main()
