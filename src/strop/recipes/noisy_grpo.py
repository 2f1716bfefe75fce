"""Groups sampled under rising prompt noise, whose level is a prior on the quality of an answer."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.method.schedule import Schedule
from strop.parts.advantage.baseline.fuse_noise_prior import FuseNoisePrior
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.rollout.sample_under_noise import SampleUnderNoise
from strop.recipes._base import ESTIMATOR
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=ESTIMATOR, num_rollouts=4)
def noisy_grpo(
    *,
    # Share of the prompt's tokens that is replaced for each rollout after a clean one; repeated.
    levels: tuple[float, ...] = (0.3, 0.6, 0.9),
    # Factor on all levels; may be scheduled. The levels are meant for images: so much noise leaves
    # nothing of a text to answer.
    noise_scale: float | Schedule = 0.1,
    # Weight of the prior's variance.
    p_alpha: float = 0.01,
    # Variance of the observation.
    r: float = 0.1,
    # Added to deviations.
    eps: float = 1e-4,
    # Whether groups of equal rewards use the prior.
    learn_from_uniform: bool = True,
    **parent: Any,
) -> Algorithm:
    """NoisyGRPO: Incentivizing CoT Reasoning via Noise Injection and Bayesian Estimation.

    arXiv 2510.21122. Code: Artanic30/NoisyGRPO. Parent: grpo. Status: exact.

    Family: draws.
    In short: noise in prompts when sampling.
    Choose it when: answers of a group are too alike; noise in the prompt diversifies them, and
    noisier answers are trusted less.
    Equation: rollout i reads its prompt with noise n_i; P = p_alpha / (std_g^2 + p_alpha),
    K = P / (P + r), A = norm(norm(R) + K (norm(1 - n) - norm(R))), norm over the group.
    Differs from the parent: noise on the prompt in sampling, none in training; its level is a prior
    that weighs more, the less rewards differ.
    Differs from the paper: 1. tokens of the prompt are replaced, where the paper adds noise to
    images beside an unchanged question; so the default is a tenth of its levels, and noise_scale=1
    is its own; 2. no mask of noisy rollouts that beat the worst clean one (off in the released
    code).
    Try: levels, noise_scale (linear(0.1, 0.05)), learn_from_uniform (false).
    """
    baseline = FuseNoisePrior(p_alpha, r, eps, learn_from_uniform)
    rollout = SampleUnderNoise(levels=levels, scale=noise_scale)
    return dataclasses.replace(
        grpo(**parent), rollout=Use(rollout), advantage=(Use(baseline), Use(SpreadEvenly()))
    )
