"""Rank in a tournament of the prompt's answers as the reward."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.reward.rank_in_tournament import RankInTournament
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(
    grpo, without=("std", "normalize_std", "singleton"), clip_high=0.28, num_prompts=16,
    num_rollouts=16,
)  # fmt: skip
def arena_rl(
    *,
    # "elimination" (seeded), "anchor" (the seeds alone) or "round_robin".
    scheme: str = "elimination",
    # "paper", or "code": byes go to whoever is left over and not to the best seeds, and equal
    # scores against the anchor share a rank.
    variant: str = "paper",
    **parent: Any,
) -> Algorithm:
    """ArenaRL: Scaling RL for Open-Ended Agents via Tournament-based Relative Ranking.

    arXiv 2601.06487. Code: Alibaba-NLP/qqr. Parent: grpo. Status: exact.

    Family: rewards.
    In short: tournament rank as the reward.
    Choose it when: answers are open-ended, a judge compares two answers more reliably than it
    scores one, and you can afford the matches.
    Equation: r_i = 1 - rank_i / (N - 1), A_i = (r_i - mean) / (std + eps); rank by a seeded single
    elimination over pairs that a judge compares.
    Differs from the parent: the reward functions see two answers of a prompt, the other one as
    `opponent`, and only which of them scores higher counts. A judge's file names {opponent} in its
    prompt.
    Differs from the paper: 1. a pair costs two judgements of one score each (there of both, in two
    orders); 2. Swiss and double elimination are left out; 3. one judge, no sum of two. For a
    validation the data's own column `opponent` holds what answers are compared with.
    Try: scheme, num_rollouts (a power of two), rollout.temperature (0.8).
    """
    ranked = (Use(RankInTournament(scheme, variant)),)
    return dataclasses.replace(grpo(**parent), reward=ranked)
