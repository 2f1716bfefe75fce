"""Group relative policy optimisation with a wider upper clip and no uniform groups."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.curation.drop_uniform_groups import DropUniformGroups
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.parts.reward.penalise_overlong_softly import PenaliseOverlongSoftly
from strop.parts.selection.drop_truncated_rollouts import DropTruncatedRollouts
from strop.recipes._base import ESTIMATOR, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=(*ESTIMATOR, "beta"), aggregation="token-mean")
def dapo(
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip_c: float = 0.0,
    dynamic_sampling: bool = True,
    refill: bool = True,
    max_rounds: int = 10,
    overlong_buffer: int = 0,
    overlong_factor: float = 1.0,
    overlong_filter: bool = False,
    **parent: Any,
) -> Algorithm:
    """DAPO: An Open-Source LLM Reinforcement Learning System at Scale.

    arXiv 2503.14476, eq. 8 to 13. Code: verl-project/verl-recipe, dapo. Parent: grpo.
    Status: exact.

    Family: ratios.
    In short: higher clip, no uniform groups.
    Choose it when: long reasoning is trained on rewards of 0 and 1, entropy falls, many groups are
    all right or all wrong, and fresh prompts are affordable.
    Equation: loss = -1/N sum_t min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) over groups
    whose outcomes differ; R_i = outcome_i + min(-(len - (L_max - L_buf)) / L_buf factor, 0).
    Differs from the parent: wider clip above, all tokens weigh the same, groups with equal outcomes
    are replaced by fresh prompts, answers near the length limit lose reward.
    Differs from the paper: 1. when max_rounds of sampling do not fill the batch the step continues
    with what it has (the released code raises); 2. L_buf is L_max / 8 unless given (paper: 4096 of
    20480, released script: 512 of 4096). What others call dapo_overlong_shaping and
    dapo_dynamic_sampling are overlong_* and dynamic_sampling here, or the parts by themselves. A
    step has one update, not 16 (`num_minibatches=16`), which took more time.
    Try: clip_high, max_rounds, overlong_factor (0: no length penalty).
    """
    clip = ClipBothSides(clip_low, clip_high, dual_clip_c)
    algorithm = with_policy(grpo(**parent), objective=Use(clip))
    shaping = PenaliseOverlongSoftly(overlong_buffer, overlong_factor)
    live = DropUniformGroups(max_rounds=max_rounds if refill else 1)
    return dataclasses.replace(
        algorithm,
        reward=(*algorithm.reward, *((Use(shaping),) if overlong_factor else ())),
        curation=(Use(live),) if dynamic_sampling else (),
        selection=(Use(DropTruncatedRollouts()),) if overlong_filter else (),
    )
