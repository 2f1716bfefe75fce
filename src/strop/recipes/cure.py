"""First explores by branching at critical tokens, then trains on plain answers."""

import dataclasses
from typing import Any

from strop.method.algorithm import Phase, Phases, read_until
from strop.method.part import Use
from strop.parts.rollout.branch_at_critical_tokens import BranchAtCriticalTokens
from strop.parts.selection.drop_reused_prefixes import DropReusedPrefixes
from strop.recipes._inherit import inherits
from strop.recipes.dapo import dapo


@inherits(dapo, dual_clip_c=10.0)
def cure(
    *,
    branches: int = 3,
    candidates: int = 20,
    min_letters: int = 2,
    # When the first phase ends: a step, a share of the run, or a condition such as entropy < 1.
    until: float | str = 0.5,
    **parent: Any,
) -> Phases:
    """CURE: Critical-Token-Guided Re-Concatenation for Entropy-Collapse Prevention.

    arXiv 2508.11016. Code: bytedance/CURE. Parent: dapo. Status: exact.

    Family: draws. Model: tiny-worked.
    In short: branches at critical tokens first.
    Choose it when: entropy falls early and answers of a group are too alike; you can afford a
    forward pass over the first answers, and return to plain sampling once entropy has recovered.
    Equation: explore: c_i ~ uniform(top candidates of H_i), y_ij ~ pi(. | x, y_i[:c_i]),
    j = 1..branches; A over all n1 (1 + branches) answers; the prefix has no loss. sharpen: dapo.
    Differs from the parent: in the first phase a quarter of a group's answers are sampled whole;
    each of the others is sampled again from an uncertain token of one of these. The clip is dual
    (10).
    Differs once: `'cure(min_letters=1)'`, where tokens are single characters (rollout/tokens_shared
    > 0).
    Differs from the paper: 1. the phases change at half of the run (there at step 300: until=300);
    2. prefix and branch share an answer's token limit, and the overlong penalty counts both; 3.
    both phases have the same limit of tokens (there 2596 and 3584:
    phases.sharpen.rollout.max_tokens). A step has one update, not 16 (`num_minibatches=16`), which
    took more time.
    Try: until (or a condition, 'entropy < 0.3'), min_letters (1 where tokens are single characters,
    as in tiny), branches, candidates (0: the ablation with a random place).
    """
    sharpen = dapo(**parent)
    explore = dataclasses.replace(
        sharpen,
        rollout=Use(BranchAtCriticalTokens(branches=branches, candidates=candidates,
                                           min_letters=min_letters)),
        selection=(*sharpen.selection, Use(DropReusedPrefixes())),
    )  # fmt: skip
    return Phases((Phase(explore, read_until(until), "explore"), Phase(sharpen, None, "sharpen")))
