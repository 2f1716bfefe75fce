"""Do the terms of a method's loss pull the weights apart? One row per pair of terms.

    python benchmarks/term_conflict.py [RECIPE ...] [--steps 40] [--every 2] [--seeds 2]
        [--out runs/term_conflict]

Each recipe is trained on the shipped model and Countdown with `training.conflict_every`, which
measures the gradients of its terms (docs/METRICS.md, "Terms of the loss"). The output has means
over all measurements of the last three quarters of the steps, with the standard error of the cosine
across the halves. Existing runs are read, not repeated. docs/evidence/term_conflict.md has the
table.
"""

import argparse
import re
from itertools import permutations
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from processes import train

from strop.tracking.metrics_file import lines_of

RECIPES = (
    "grpo(beta=0.04)", "grpo(beta=1.0)", "entropy_bonus(coef=0.001)",
    "entropy_bonus(coef=0.1)", "hpt", "luffy_shaping", "rl_plus", "tea_rl", "spine",
    "dph_rl(num_trials=1)", "dro(num_minibatches=4)",
)  # fmt: skip
BLOCKS = ("all", "head", "lower", "upper")
HEAD = "| recipe | terms | cosine | head | lower | upper | across halves | floors | shares |"


def measurements(recipe: str, seed: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The measurements of a run, which is made, or ended, if it is not complete."""
    folder = options.out / f"{re.sub(r'[^A-Za-z0-9.]+', '_', recipe).strip('_')}-{seed}"
    train(
        folder, recipe, "--quiet", f"seed={seed}", f"training.steps={options.steps}",
        f"training.conflict_every={options.every}", "training.inspect=0",
        "training.rollouts_every=0", "training.save_every=0", "evaluation.every=0",
    )  # fmt: skip
    return [line for line in lines_of(folder) if 4 * line["step"] > options.steps]


def rows(recipe: str, options: argparse.Namespace) -> list[str]:
    """The table's rows of a recipe: one for each pair of terms that both have a gradient."""
    lines = [line for seed in range(options.seeds) for line in measurements(recipe, seed, options)]

    def values(name: str) -> list[float]:
        found = (line.get(name) for line in lines)
        return [value for value in found if value is not None]

    shared = dict.fromkeys(key for line in lines for key in line if "conflict/share" in key)
    names, found = [key.removeprefix("conflict/share/") for key in shared], []
    for one, other in permutations(names, 2):
        across = values(f"conflict/across/{one}_{other}/all")
        if len(across) < 2:
            continue  # the pair is logged in the other order, or a term has no gradient
        cosines = [f"{mean(values(f'conflict/{one}_{other}/{block}')):.2f}" for block in BLOCKS]
        error = stdev(across) / len(across) ** 0.5
        floors = ", ".join(f"{mean(values(f'conflict/floor/{n}/all')):.2f}" for n in (one, other))
        shares = ", ".join(f"{mean(values(f'conflict/share/{n}')):.3f}" for n in (one, other))
        found.append(
            f"| `{recipe}` | {one}, {other} | {' | '.join(cosines)} | "
            f"{mean(across):.2f} ± {error:.2f} | {floors} | {shares} |"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/term_conflict"))
    options = parser.parse_args()
    print(HEAD, "|" + " --- |" * 9, sep="\n")
    for recipe in options.recipes:
        for row in rows(recipe, options):
            print(row, flush=True)


if __name__ == "__main__":
    main()
