"""An entropy bonus over the turns of an episode, smoothed by the run's own history."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.method.schedule import Decay, EntropyTarget
from strop.parts.control.carry_metric_forward import CarryMetricForward
from strop.parts.loss.average.average_per_turn import AveragePerTurn
from strop.parts.loss.penalty.reward_entropy import RewardEntropy
from strop.parts.rollout.play_turns import PlayTurns
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, aggregation="token-mean")
def epo(
    *,
    # Weight of the entropy and of its penalty, reward per nat.
    lam: float = 0.001,
    # The corridor around the mean entropy of the steps so far, as factors of it.
    kappa_l: float = 0.0,
    kappa_r: float = 2.0,
    # Weight of the penalty for leaving the corridor; 0.1 on ALFWorld.
    alpha: float = 0.05,
    # How fast the penalty's further weight falls, 1 + exp(-gamma k / floor(K / 2)); inf: stays 1.
    gamma: float = 3.0,
    # The past entropy at the centre of the corridor, nats; below 0: measured.
    past: EntropyTarget = -1.0,
    **parent: Any,
) -> Algorithm:
    """EPO: Entropy-regularized Policy Optimization for LLM Agents Reinforcement Learning.

    arXiv 2509.22576, eq. 2 to 6. Code: WujiangXu/EPO. Parent: grpo. Status: exact.

    Family: entropy.
    In short: entropy bonus in a moving band.
    Choose it when: an agent's entropy swings from step to step in long episodes, and should stay
    near its own past rather than at a fixed value.
    Equation: loss = grpo's - lam (L_H - beta_k L_smooth), both means over a turn's tokens, then
    over turns, then over trajectories; L_H of H_t, L_smooth of alpha (relu(kappa_l Hbar - H_t) +
    relu(H_t - kappa_r Hbar)), Hbar the mean entropy of all earlier steps; beta_k = 1 +
    exp(-gamma k / floor(K / 2)), k = 0 at the first step.
    Differs from the parent: plays episodes; the entropy term; all tokens weigh the same.
    Differs from the paper: no; the policy term's average, which it does not give, is its code's
    (token-mean), and Hbar's average in a step is over its policy tokens. The released
    code's penalty is a constant without gradient; this is the paper's.
    Try: lam, alpha, kappa_l and kappa_r (0.5 and 1.5), past (a schedule: a corridor set by hand).
    """
    given = not isinstance(past, float | int) or past >= 0
    weight = Decay(2.0, 1.0, gamma)
    part = RewardEntropy((kappa_l, kappa_r), past, alpha, weight)
    bonus = Term("entropy", Use(part), Use(AveragePerTurn()), coef=lam)
    algorithm = grpo(**parent)
    return dataclasses.replace(
        algorithm,
        rollout=Use(PlayTurns()),
        terms=(*algorithm.terms, bonus),
        control=() if given else (Use(CarryMetricForward()),),
    )
