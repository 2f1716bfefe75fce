"""PPO that learns from answers that were cut off as from answers that go on."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.credit.estimate_generalised_advantage import EstimateGeneralisedAdvantage
from strop.recipes._inherit import inherits
from strop.recipes.gae import gae


@inherits(gae, without=("whiten_eps",))
def t_ppo_egae(*, gamma: float = 1.0, lam: float = 0.95, **parent: Any) -> Algorithm:
    """Truncated Proximal Policy Optimization.

    arXiv 2506.15050. Code: none released. Parent: gae. Status: partial.

    Family: critics.
    In short: learns from cut-off answers.
    Choose it when: many answers reach the token limit and should teach all the same, valued by the
    critic from where they stop.
    Equation: A_t = sum_{j >= t} (gamma lam)^(j - t) delta_j, delta_j = r_j + gamma V_{j+1} - V_j;
    where a rollout was cut off, the missing last V is V of its last token; critic: against
    G_t = A_t + V_t at lam 1 without that, which is the outcome where gamma is 1.
    Differs from the parent: cut rollouts go on as valued; the critic's targets have lambda 1; no
    whitening.
    Differs from the paper: 1. a cut rollout does not go on in the next step: the window is
    rollout.max_tokens, and the pool of unfinished answers is missing; 2. it is over, so the critic
    learns from it too, what its reward function gave (0, if it grades the answer): of finished ones
    alone it takes a cut for what they got, and more and more are cut (Countdown, limit 7, last 8 of
    90 steps, seeds 0 and 1: 63% and 60%, reward 0.46 and 0.48; so 45% and 41%, 0.59 and 0.59;
    gae 18% and 17%, 0.67 and 0.64); 3. lam, clips and whitening are not given there.
    Try: rollout.max_tokens, lam, critic.lr.
    """
    algorithm = gae(gamma=gamma, lam=lam, **parent)
    target = EstimateGeneralisedAdvantage(gamma, lam=1.0)
    credit = EstimateGeneralisedAdvantage(gamma, lam, bootstrap_truncated=True)
    chain = (
        Use(target, (("advantage_T", "advantage_target_T"),)),
        Use(credit, (("return_T", "return_credit_T"),)),
    )
    return dataclasses.replace(algorithm, advantage=chain)
