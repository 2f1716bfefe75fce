"""Policy optimisation that bounds how far a token's probability moves, not its ratio."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.bound.gate_by_divergence import GateByDivergence
from strop.recipes._base import with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, aggregation="seq-mean-token-sum-norm", num_minibatches=8)
def dppo_tv(
    *,
    # How far a bad token's probability may fall.
    clip_low: float = 0.15,
    # How far a good token's probability may rise.
    clip_high: float = 0.15,
    # Largest ratio that counts; the released code has 20, its config 3, its example 10000.
    ratio_cap: float = 20.0,
    **parent: Any,
) -> Algorithm:
    """Divergence PPO with the binary total variation of a token (DPPO).

    arXiv 2602.04879. Code: verl-project/verl (dppo_tv). Parent: grpo. Status: exact.

    Family: ratios.
    In short: bounds the change of probability.
    Choose it when: a ratio clip stops a token of 1% at 1.2% and lets one of 90% fall to 72%; the
    change of probability should be the limit.
    Equation: loss = -1/(B L) sum_t sg[min(rho, ratio_cap) valid] A logp; valid: p - p_old <=
    clip_high where A > 0, p - p_old >= -clip_low elsewhere; p = exp(logp).
    Differs from the parent: the clip's two numbers are probabilities; rare tokens may grow by any
    factor; tokens are summed and divided by one length; eight updates a step.
    Differs once: `plan.num_minibatches=8 training.lr=5e-3`, where the gate acts
    (clip_ratio/region_mean > 0).
    Differs from the paper: no. Invalid tokens still count in averages. verl's example leaves out
    the deviation (`normalize_std=False`).
    Try: clip_high, clip_low, num_minibatches.
    """
    gate = GateByDivergence("tv", clip_low, clip_high, ratio_cap)
    return with_policy(grpo(**parent), objective=Use(gate))


@inherits(dppo_tv)
def dppo_kl(
    *,
    # How far a bad token may fall, nats of the binary divergence.
    clip_low: float = 0.05,
    # How far a good token may rise, nats of the binary divergence.
    clip_high: float = 0.05,
    ratio_cap: float = 20.0,
    **parent: Any,
) -> Algorithm:
    """Divergence PPO with the binary Kullback-Leibler divergence of a token (DPPO).

    arXiv 2602.04879. Code: verl-project/verl (dppo_kl). Parent: dppo_tv. Status: exact.

    Family: ratios.
    In short: bounds the binary KL of a token.
    Choose it when: the limit on a token's probability should be a divergence in nats, which is
    stricter near 0 and 1 than a difference.
    Equation: as the parent's; K = p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p)),
    valid: K <= clip_high or p <= p_old where A > 0, K <= clip_low or p >= p_old elsewhere.
    Differs from the parent: the binary divergence (this token or any other), in nats, replaces the
    difference of probabilities.
    Differs once: `plan.num_minibatches=8 training.lr=5e-3`, where the gate acts
    (clip_ratio/region_mean > 0).
    Differs from the paper: no. As dppo_tv.
    Try: clip_high, clip_low, num_minibatches.
    """
    gate = GateByDivergence("kl", clip_low, clip_high, ratio_cap)
    return with_policy(dppo_tv(**parent), objective=Use(gate))
