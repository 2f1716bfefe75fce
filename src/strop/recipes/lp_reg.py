"""Policy optimisation that spares unlikely but plausible tokens of bad answers."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.bound.shield_unlikely_tokens import ShieldUnlikelyTokens
from strop.parts.probe.score_plausible_tokens import ScorePlausibleTokens
from strop.recipes._base import CLIP, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=(*CLIP, "beta"), aggregation="token-mean", num_rollouts=8)
def lp_reg(
    *,
    # "paper", or "code": the form of the released code.
    variant: str = "paper",
    # Tokens up to this share of the largest probability are implausible.
    kappa: float = 0.02,
    # Share of the tokens that are unlikely; 0.005 for the largest model there.
    rho_pct: float = 0.01,
    # Weight of the divergence from the proxy distribution.
    beta: float = 1.0,
    # "k3" of the sampled token, or "full".
    divergence: str = "k3",
    # The ratio is held within [1 - clip_low, 1 + clip_high].
    clip_low: float = 1.0,
    clip_high: float = 9.0,
    **parent: Any,
) -> Algorithm:
    """Low-probability Tokens Sustain Exploration in RL with Verifiable Reward (Lp-Reg).

    arXiv 2510.03222, eq. 5 and 6. Code: CarlanLark/Lp-Reg-dev. Parent: grpo. Status: exact.

    Family: entropy.
    In short: keeps unlikely, plausible tokens.
    Choose it when: rare but sensible tokens die out because they occur in wrong answers, and an
    entropy bonus on all tokens would amplify noise as well.
    Equation: loss = -mean_t [clip(rho, 0, 10) A - beta I_t D(proxy || pi)]; proxy = pi_old without
    the tokens up to kappa of its largest, renormalised; I_t: pi(o_t) among the lowest rho_pct of
    the update, A < 0, proxy(o_t) > 0.
    Differs from the parent: those tokens are pulled towards the proxy; a wide clip of the ratio;
    all tokens weigh the same.
    Differs once: `training.steps=1` with tiny, where blamed tokens among the rho_pct least likely
    are above kappa, others not (lp_reg/shielded_mean > 0).
    Differs from the paper: D is the k3 estimate at the sampled token, as in its code; with "full"
    it is the whole divergence from the current policy's own proxy (that of the old one at a
    step's first update). variant "code" has its choice of tokens and its clips. The proxy is cut
    at the sampling temperature (its code: before it).
    Try: rho_pct, kappa, beta (0: the parent with that clip), divergence.
    """
    dual_clip_c = 1 + clip_high if variant == "paper" else 0.0
    part = ShieldUnlikelyTokens(
        clip_low, clip_high, dual_clip_c, rho_pct, beta, variant, divergence, kappa
    )
    algorithm = with_policy(grpo(**parent), objective=Use(part))
    return dataclasses.replace(algorithm, probes=(Use(ScorePlausibleTokens(kappa)),))
