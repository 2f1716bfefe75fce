"""A pioneer answers, an observer answers after reading that, and both earn the sum of rewards."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.credit.charge_kl_to_reference import ChargeKlToReference
from strop.parts.control.hold_kl_with_coefficient import HoldKlWithCoefficient
from strop.parts.reward.reward_as_team import RewardAsTeam
from strop.parts.rollout.sample_two_attempts import SampleTwoAttempts
from strop.recipes._inherit import inherits
from strop.recipes.gae import gae


@inherits(gae, without=("beta",), lam=0.95)
def cory(
    *,
    # Whether there is an observer; without one this is PPO with a KL penalty in the reward.
    observer: bool = True,
    # Text between the pioneer's answer and the observer's; {prompt} is the prompt.
    words: str = "\n{prompt}",
    # Initial coefficient of the KL penalty, reward units per nat; 0: no penalty at all.
    kl: float = 0.4,
    # KL of an answer, nats, at which the coefficient stays; 0: it never moves.
    target: float = 6.0,
    # How fast the coefficient moves: the published 256 answers a step over the horizon 10000.
    rate: float = 0.0256,
    # Whether the KL is over the whole vocabulary, not of the sampled token.
    full: bool = True,
    **parent: Any,
) -> Algorithm:
    """Coevolving with the Other You: Fine-Tuning LLM with Sequential Cooperative Multi-Agent RL.

    arXiv 2410.06101. Code: Harry67Hu/CORY. Parent: gae. Status: partial.

    Family: rewards.
    In short: pioneer and observer share reward.
    Choose it when: PPO drifts far from the reference or collapses, and a second answer, conditioned
    on the first, can be scored too; only the first answer is wanted in the end.
    Equation: a1 ~ pi_0(. | q), a2 ~ pi_1(. | q, a1, words); both earn r(q, a1) + r(q, a2), at the
    last token of their own answer, and every token -c KL(pi_old || pi_ref)_t; then gae and ppo. c
    starts at kl; c <- c (1 + rate clip(KL of an answer / target - 1, -0.2, 0.2)).
    Differs from the parent: two answers a rollout, both rewarded by the sum; a KL penalty in the
    reward, with an adaptive coefficient; lam 0.95.
    Differs from the paper: 1. two learners where the run gives them, each with adapter, value head
    and moments (`roles.play={0: one, 1: other} roles.swap_every=5 model.lora_rank=16`): they swap
    roles and reset their moments, where in the paper two whole models exchange weights; else one
    policy has both roles at every step; 2. one KL coefficient for both learners, set by their
    common KL; 3. advantages are whitened, rewards are not scaled.
    Try: full=False where the policy ends its answers itself (in the paper their length is drawn;
    the whole KL of a token does not depend on that token, so it teaches to end early), kl (0.05),
    target, words, observer=False (shows what the pair adds).
    """
    algorithm = gae(**parent)
    if kl:
        price = Use(ChargeKlToReference(kl, full))
        held = (Use(HoldKlWithCoefficient(target, rate)),) if target else ()
        algorithm = dataclasses.replace(
            algorithm, advantage=(price, *algorithm.advantage), control=held
        )
    if not observer:
        return algorithm
    return dataclasses.replace(
        algorithm,
        rollout=Use(SampleTwoAttempts(words=words)),
        reward=(*algorithm.reward, Use(RewardAsTeam())),
    )
