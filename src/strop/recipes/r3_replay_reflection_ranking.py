"""Zero-variance groups repaired by a prompt's own history, retries and ranks of cut-off answers."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.scale.divide_by_group_std import DivideByGroupStd
from strop.parts.curation.bring_back_opposites import BringBackOpposites
from strop.parts.loss.ratio.ratio_per_token import RatioPerToken
from strop.parts.reward.rank_truncated_by_entropy import RankTruncatedByEntropy
from strop.parts.reward.reward_short_right_answers import RewardShortRightAnswers
from strop.recipes._base import with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=("eps", "normalize_std"))
def r3_replay_reflection_ranking(
    *,
    # Earlier rollouts that are replayed into a group with equal outcomes.
    k: int = 1,
    # Mean earlier outcome below which a prompt is tried once more; 0: never.
    tau: float = 0.5,
    # Template of the retry, with its {prompt} and a wrong {answer}; empty: one that the model can
    # read.
    words: str = "",
    # Share of a cut-off answer's tokens that are its peak.
    p: float = 0.2,
    # Reward of the best cut-off answer where none is right; 0: no ranking.
    R_max: float = 0.5,
    # Length from which a right answer gets no more for being short; 0: no such bonus.
    length: int = 32768,
    # Factor of the deviation, and what is added to it.
    alpha: float = 1.0,
    lambda_: float = 1e-6,
    # Whether ratios are to the policy that sampled a token; else to the policy before the update.
    of_sampler: bool = True,
    std: str = "unbiased",
    **parent: Any,
) -> Algorithm:
    """R^3: Replay, Reflection, and Ranking Rewards for LLM Reinforcement Learning.

    arXiv 2601.19620, algorithm 1. Code: none released. Parent: grpo. Status: partial.

    Family: draws.
    In short: repairs uniform groups by replay.
    Choose it when: many groups are all right or all wrong and should be repaired, by earlier
    answers or a retry that sees the mistake, rather than replaced.
    Equation: A_i = (R_i - mean_g) / (alpha std_g + lambda_) over rollouts and replayed ones.
    Differs from the parent: groups with equal outcomes get earlier rollouts with the other outcome;
    prompts of low success are tried again with a wrong answer in the prompt; where all fail,
    cut-off answers are ranked by where their entropy is; short right answers earn more.
    Differs once: `data.train_size=16`: prompts recur (replay/drawn > 0).
    Differs from the paper: it does not state k, tau, p, R_max, alpha, lambda_, the words and the
    size of the replay buffer; all are inferred, as is the ratio of replayed rollouts (of_sampler).
    Try: k, tau, words, alpha.
    """
    algorithm = grpo(**parent, std=std)
    mean, _, spread = algorithm.advantage
    if of_sampler:
        ratio = Use(RatioPerToken(), (("logp_old_T", "logp_sampler_T"),))
        algorithm = with_policy(algorithm, ratio=ratio)
    shaping = (Use(RewardShortRightAnswers(length)),) if length else ()
    ranking = (Use(RankTruncatedByEntropy(p, R_max)),) if R_max else ()
    history = BringBackOpposites(k, retry_below=tau, words=words)
    scale = DivideByGroupStd(lambda_, std, factor=alpha)
    return dataclasses.replace(
        algorithm,
        reward=(*algorithm.reward, *shaping, *ranking),
        curation=(Use(history),) if k or tau else (),
        advantage=(mean, Use(scale), spread),
    )
