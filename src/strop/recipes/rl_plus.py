"""Group relative policy optimisation with demonstrations, by a bounded importance weight."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.scale.divide_by_group_std import DivideByGroupStd
from strop.parts.loss.bound.weigh_by_mixture_ratio import WeighByMixtureRatio
from strop.recipes._base import with_term
from strop.recipes._inherit import inherits
from strop.recipes.luffy_shaping import luffy_shaping


@inherits(luffy_shaping, without=("shape",), num_minibatches=2)
def rl_plus(
    *,
    # How much less a demonstration's token weighs where the policy expects it; 0: all the same.
    gamma: float = 0.5,
    # Share of the constant 1 in the estimate of the demonstrations' author.
    uniform: float = 0.5,
    # Whether to divide by the group's deviation, as in the paper; its code does not.
    normalize_std: bool = False,
    **parent: Any,
) -> Algorithm:
    """RL-PLUS: Countering Capability Boundary Collapse of LLMs in Reinforcement Learning.

    arXiv 2508.00222. Code: YihongDong/RL-PLUS. Parent: luffy_shaping. Status: exact.

    Family: demonstrations.
    In short: demonstrations, bounded weights.
    Choose it when: demonstrations of unknown origin join the groups and need an importance weight
    that stays bounded and is larger on unexpected tokens.
    Equation: demonstration tokens: 2 p / (p_w + p_old) A sg(1 - p)^gamma, p = exp(logp), p_w =
    (1 - uniform) p_old + uniform; the policy's own: rho A; A_i = R_i - mean over the joint group;
    loss = -1/L sum of both - entropy_coef mean_t H_t.
    Differs from the parent: demonstrations are weighted by a ratio to a mixture of the old policy
    and an estimate of their author, and by how unexpected they are. They have no behaviour
    log-probability, so that mixture replaces it; two updates a step.
    Differs from the paper: this is its code's form. The paper clips the policy's own tokens (clip)
    and divides by the deviation (normalize_std); L is the run's constant, there 8192.
    Try: gamma (0: no focus), clip (0.2), uniform.
    """
    mixed = Use(WeighByMixtureRatio(gamma, uniform))
    algorithm = with_term(luffy_shaping(**parent), "demonstrations", objective=mixed)
    mean, spread = algorithm.advantage
    scale = (Use(DivideByGroupStd()),) if normalize_std else ()
    return dataclasses.replace(algorithm, advantage=(mean, *scale, spread))
