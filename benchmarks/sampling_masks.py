"""How a learner treats truncated sampling (top-k, top-p, min-p), in three ways, by enumeration.

    python benchmarks/sampling_masks.py [--recipe rloo] [--updates 4] [--success 0.3]

Prints the table of docs/SAMPLING_MASKS.md: for each cut and each `rollout.sampling_mask`, scale and
bias of the mean step towards the gradient of the cut policy and of the whole one, with one update
on the answers and with several, and the ratio of a token's probability under learner and sampler.
"""

import argparse
import sys

from strop.auditing.estimate import Audit, Limits
from strop.auditing.vary import Setting, one
from strop.training.settings.config import make

CUTS = (
    ("top_k", 4), ("top_p", 0.95), ("top_p", 0.9), ("top_p", 0.8), ("top_p", 0.7), ("top_k", 3),
    ("top_k", 2), ("min_p", 0.1), ("min_p", 0.2),
)  # fmt: skip
MASKS = ("ignore", "weigh", "renormalise")
HEAD = ("cut", "mask", "ratio", "cut: scale", "bias", "whole: scale", "bias", "cut: bias, {n}",
        "whole: bias, {n}")  # fmt: skip


def audited(recipe: str, mask: str, cut: tuple[str, float], setting: Setting) -> Audit:
    """The audit of a step whose draws are cut."""
    options = {f"rollout.{cut[0]}": cut[1], "rollout.sampling_mask": mask}
    return one(make({"recipe": recipe, "algorithm": options}), setting, Limits(most=10_000))


def main() -> None:
    """Print the table, one line per cut and way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="rloo")
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--success", type=float, default=0.3)
    parser.add_argument("--group", type=int, default=2)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--branching", type=int, default=4)
    given = parser.parse_args()
    settings = [
        Setting(depth=given.depth, branching=given.branching, group=given.group,
                success=given.success, updates=updates)
        for updates in (1, given.updates)
    ]  # fmt: skip
    head = [name.format(n=given.updates) for name in HEAD]
    print("| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
    for cut in CUTS:
        for mask in MASKS:
            once, several = (audited(given.recipe, mask, cut, each) for each in settings)
            assert once.exact, "all groups are enumerated"
            numbers = [once.ratio, *(
                number.value for number in (once.cut_scale, once.cut_bias, once.scale, once.bias,
                                            several.cut_bias, several.bias)
            )]  # fmt: skip
            shown = " | ".join(f"{number:.3f}" for number in numbers)
            print(f"| {cut[0]} {cut[1]:g} | {mask} | {shown} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
