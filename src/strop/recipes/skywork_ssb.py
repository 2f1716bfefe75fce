"""Samples rollouts by the size of their advantage, and fills batches from a replay buffer."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.curation.replay_by_advantage import ReplayByAdvantage
from strop.parts.loss.ratio.ratio_per_token import RatioPerToken
from strop.parts.sampling.draw_solvable_prompts import DrawSolvablePrompts
from strop.recipes._base import drawn_by, replaying, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo)
def skywork_ssb(
    *,
    # Rollouts of an update / rollouts sampled; 0: all of them and no replay buffer.
    share: float = 0.5,
    # Rollouts that the replay buffer holds; 0: as many as an update has.
    capacity: int = 0,
    # Power of |A| in the sampling weights; 0: all the same.
    exponent: float = 1.0,
    # Added to |A| in the replay buffer.
    floor: float = 1e-4,
    # Whether ratios are to the policy that sampled a token; else to the policy before the update.
    of_sampler: bool = True,
    # Answers to each prompt of the pool before the first step; 0: no prompt is left out.
    filter_answers: int = 8,
    num_prompts: int = 32,
    num_rollouts: int = 16,
    **parent: Any,
) -> Algorithm:
    """Skywork R1V2: Multimodal Hybrid Reinforcement Learning for Reasoning (SSB).

    arXiv 2504.16656, sec. 3.2 to 3.3. Code: none released. Parent: grpo. Status: partial.

    Family: draws.
    In short: replay by size of advantage.
    Choose it when: late in a run few groups carry a signal, and rollouts with a large advantage
    should be replayed to fill the batch.
    Equation: A_i = (R_i - mean_g) / (std_g + eps) among the peers of its own step; rows of A = 0
    are dropped; P(i) = |A_i| / sum |A| over this step's, (|A_i| + floor) / sum over the buffer's.
    Before the first step, prompts with A = 0 for all of filter_answers answers leave the pool.
    Differs from the parent: prompts without a signal at the start are left out; an update has rows
    sampled with replacement, new ones first, then those of a replay buffer (oldest out first); a
    row keeps its A and the log-probabilities with which it was sampled.
    Differs from the paper: it says in words only that rows of A != 0 are stored and sampled by |A|,
    and that prompts are filtered so before; share, capacity, exponent, floor, the order of sampling
    and the ratio are inferred from TIGER-AI-Lab/VL-Rethinker, whose replay it cites; the number of
    answers of the filter (8) is ours. The filter has one turn, so environments need filter_answers
    0. Its reward is the sum of those given: a rule, a format and model:FOLDER of a preference
    model. Its first phase is skywork_mpo, on rows with chosen and rejected, in the same run without
    the filter: until(0.3, skywork_mpo) | skywork_ssb(filter_answers=0). Images are left out.
    Try: capacity (a multiple of num_prompts * num_rollouts), share (1), filter_answers (0).
    """
    algorithm = grpo(num_prompts=num_prompts, num_rollouts=num_rollouts, **parent)
    if filter_answers:
        draw = DrawSolvablePrompts(num_prompts, num_rollouts, filter_answers, -1, spread=0.0)
        sampling = drawn_by(draw)
        algorithm = dataclasses.replace(algorithm, sampling=sampling)
    if share == 0:
        return algorithm
    if of_sampler:
        ratio = Use(RatioPerToken(), (("logp_old_T", "logp_sampler_T"),))
        algorithm = with_policy(algorithm, ratio=ratio)
    return replaying(algorithm, ReplayByAdvantage(share, capacity, exponent, floor))
