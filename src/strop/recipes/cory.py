"""A pioneer answers, an observer answers with that in sight, and both earn the sum."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.subtract_kl_to_reference import SubtractKlToReference
from strop.parts.reward.reward_as_team import RewardAsTeam
from strop.parts.rollout.sample_two_attempts import SampleTwoAttempts
from strop.recipes._inherit import inherits
from strop.recipes.gae import gae


@inherits(gae, without=("beta",), lam=0.95)
def cory(
    *,
    # Whether there is an observer; without one it is PPO with the price in the reward.
    observer: bool = True,
    # What stands between the pioneer's answer and the observer's; {prompt} is the prompt.
    words: str = "\n{prompt}",
    # Price of a nat between the policy and its start, reward units.
    kl: float = 0.4,
    **parent: Any,
) -> Algorithm:
    """Coevolving with the Other You: Fine-Tuning LLM with Sequential Cooperative Multi-Agent RL.

    arXiv 2410.06101. Code: Harry67Hu/CORY. Parent: gae. Status: partial.

    Family: rewards.
    In short: two answers share rewards.
    Choose it when: PPO drifts far from its start or collapses, and a second answer with the first
    in sight can be graded too; what is wanted in the end is the first answer.
    Equation: a1 ~ pi_0(. | q), a2 ~ pi_1(. | q, a1, words); R = r(q, a1) + r(q, a2) - kl sum_t
    (logp_old - logp_ref) of the own answer, for both; then gae and ppo.
    Differs from the parent: two answers a rollout, paid for both; the price of leaving the start;
    lam 0.95.
    Differs from the paper: 1. two learners where the run gives them, each with adapter, value head
    and moments (`roles.play={0: one, 1: other} roles.swap_every=5 model.lora_rank=16`): they change
    roles and lose their moments, where two whole models exchange weights; else one policy has both
    roles at every step; 2. the price stands at an answer's end and is of the sampled tokens, at a
    fixed coefficient (there each token's, of the whole vocabulary, adapted); 3. advantages are
    whitened, rewards are not scaled.
    Try: kl (0.05), words, observer=False (what the pair adds).
    """
    algorithm = gae(**parent)
    price = (Use(SubtractKlToReference(kl)),) if kl else ()
    algorithm = dataclasses.replace(algorithm, advantage=(*price, *algorithm.advantage))
    if not observer:
        return algorithm
    return dataclasses.replace(
        algorithm,
        rollout=Use(SampleTwoAttempts(words=words)),
        reward=(*algorithm.reward, Use(RewardAsTeam())),
    )
