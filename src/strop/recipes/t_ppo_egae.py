"""PPO on a window of new tokens of unfinished answers, which continue in later steps."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.credit.estimate_generalised_advantage import EstimateGeneralisedAdvantage
from strop.parts.rollout.extend_answers_by_window import ExtendAnswersByWindow
from strop.parts.sampling.fill_free_places import FillFreePlaces
from strop.parts.selection.keep_marked_tokens import KeepMarkedTokens
from strop.recipes._inherit import inherits
from strop.recipes.gae import gae


@inherits(gae, without=("whiten_eps",), num_prompts=512, num_rollouts=1)
def t_ppo_egae(
    *,
    # New tokens of an answer in a step; 0: whole answers.
    window: int = 32,
    gamma: float = 1.0,
    lam: float = 0.95,
    **parent: Any,
) -> Algorithm:
    """Truncated Proximal Policy Optimization.

    arXiv 2506.15050. Code: none released. Parent: gae. Status: partial.

    Family: critics. Model: tiny-worked.
    In short: learns from unfinished answers.
    Choose it when: a few long answers hold up every step, a critic is trained anyway, and a step
    should learn from the tokens that it has just sampled.
    Equation: A_t = sum_{j >= t} (gamma lam)^(j - t) delta_j, delta_j = r_j + gamma V_{j+1} - V_j,
    where the missing last V of an unfinished answer is V of its last token; the policy learns from
    the window of this step's tokens; the critic from answers that ended in this step, all of their
    tokens, against G_t = A_t + V_t at lam 1, which is the outcome where gamma is 1.
    Differs from the parent: num_prompts prompts are in flight, and a step samples `window` tokens
    of each; unfinished answers are not scored, and are valued by the critic as continuing; the
    critic's targets have lambda 1; no whitening.
    Differs from the paper: 1. window, lam, clips and whitening are not given there; 2. targets of
    lambda 1, and that earlier tokens are masked, are inferred; 3. a prompt's place in the pool
    becomes free when all of its answers have ended; 4. caches are recomputed in each step; 5.
    answers only, no episodes.
    Try: window, lam, critic.lr.
    """
    algorithm = gae(gamma=gamma, lam=lam, **parent)
    target = EstimateGeneralisedAdvantage(gamma, lam=1.0)
    credit = EstimateGeneralisedAdvantage(gamma, lam)
    return dataclasses.replace(
        algorithm,
        sampling=(*algorithm.sampling, Use(FillFreePlaces())),
        rollout=Use(ExtendAnswersByWindow(window=window)),
        advantage=(
            Use(target, (("advantage_T", "advantage_target_T"),)),
            Use(credit, (("return_T", "return_credit_T"),)),
        ),
        selection=(Use(KeepMarkedTokens(), (("learning_T", "window_T"),)),),
    )
