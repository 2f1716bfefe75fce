"""Prompts with a predicted success near one half, and replay of groups of earlier steps."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.curation.replay_groups import ReplayGroups
from strop.parts.loss.bound.clip_around_old_ratio import ClipAroundOldRatio
from strop.parts.loss.ratio.ratio_per_token import RatioPerToken
from strop.parts.sampling.draw_near_target_success import DrawNearTargetSuccess
from strop.recipes._base import CLIP, drawn_by, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=CLIP, aggregation="token-mean", num_rollouts=8, num_minibatches=8)
def dots_rr(
    *,
    # Steps between two predictions; the first of them only fill the replay buffer.
    m: int = 2,
    # Prompts that are answered for a prediction; 0: half of num_prompts (paper: 256 of 512).
    K: int = 0,
    # Wanted success rate, and the distance from it at which a prompt is e times less likely.
    alpha: float = 0.5,
    tau: float = 1e-3,
    # Share of a step's groups that are fresh; 1: no replay.
    s: float = 0.5,
    # Groups in the replay buffer; 0: num_prompts (paper: 512 of 512).
    buffer: int = 0,
    # Width of the clip, as a share of its centre.
    clip: float = 0.2,
    num_prompts: int = 32,
    **parent: Any,
) -> Algorithm:
    """Improving Data Efficiency for LLM RL Fine-tuning: Difficulty-targeted Selection and Replay.

    arXiv 2506.05316. Code: ASTRAL-Group/data-efficient-llm-rl. Parent: grpo. Status: partial.

    Family: draws.
    In short: half-solved prompts, with replay.
    Choose it when: rollouts are expensive, most prompts are now too easy or too hard, a sample of
    them predicts which, and groups of recent steps may be reused.
    Equation: d = line through sum_j softmax_j(z . z_j / sqrt(F)) d_j; P ~ exp(-|d - alpha| / tau);
    rho relative to the policy that sampled the token, c = pi_old / that policy; loss = -mean
    min(rho A, clip(rho, c (1 - clip), c (1 + clip)) A), A within each group, fresh or stored.
    Differs from the parent: which prompts are sampled; (1 - s) num_prompts stored groups a step;
    the clip's centre; tokens weigh the same; 8 rollouts; eight updates a step.
    Differs from the paper: prompts are compared by the policy's own hidden states; the paper adds a
    trained adapter and calibration. K and buffer keep the paper's shares of num_prompts.
    Try: s, m, tau (0.1: less sharp), K.
    """
    rollouts = parent["num_rollouts"]
    draw = DrawNearTargetSuccess(num_prompts, rollouts, m, K, alpha, tau, s)
    algorithm = with_policy(
        grpo(**parent),
        objective=Use(ClipAroundOldRatio(clip, clip, relative=True)),
        ratio=Use(RatioPerToken(), (("logp_old_T", "logp_behavior_T"),)),
    )
    return dataclasses.replace(
        algorithm,
        sampling=drawn_by(draw),
        curation=(Use(ReplayGroups(s, buffer, m)),) if s < 1 else (),
    )
