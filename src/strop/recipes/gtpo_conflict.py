"""Group-relative learning that protects shared tokens and drops high-entropy rollouts."""

import dataclasses
import math
from typing import Any

from torch import Tensor

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.scale.charge_entropy import ChargeEntropy
from strop.parts.advantage.weight.protect_shared_tokens import ProtectSharedTokens
from strop.parts.control.carry_metric_forward import CarryMetricForward
from strop.parts.loss.bound.follow_advantage import FollowAdvantage
from strop.parts.selection.drop_unsure_rollouts import DropUnsureRollouts
from strop.recipes._base import CLIP, ESTIMATOR, check_choice, with_policy
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo

KNOB = "selection.drop_unsure_rollouts.initial"
THRESHOLDS = {"paper": math.log(2), "code": 0.7}


def _shared_out(conflicts: Tensor) -> Tensor:
    """The weight of a rollout's tokens, by its number of tokens in conflict."""
    return 1 / conflicts.double().clamp(min=1)


@door(
    also=("gtpo_conflict_loss",),
    columns={"mean_entropy": "entropy_old_T"},
    tensors={"advantages_seq": ("rewards", None)},  # centred already: centring changes nothing
    factors={"lambda_": ("protect_shared_tokens", None), "n_conflict": ("", _shared_out)},
)
@inherits(grpo, without=(*CLIP, *ESTIMATOR, "beta"), num_rollouts=8)
def gtpo_conflict(
    *,
    # Penalty on a rollout's mean entropy, reward per nat.
    gamma: float = 0.1,
    # Mean entropy above which a rollout is not trained on, nats; 0: ln 2 (variant "code": 0.7).
    threshold: float = 0.0,
    # Factor on tokens that good rollouts share with bad ones.
    weight: float = 2.0,
    # "paper", or "code": fixed threshold, advantages divided by the number of shared tokens.
    variant: str = "paper",
    **parent: Any,
) -> Algorithm:
    """GTPO: Stabilizing Group Relative Policy Optimization via Gradient and Entropy Control.

    arXiv 2508.03772. Code: winstonsmith1897/GTPO. Parent: grpo. Status: exact.

    Family: credit.
    In short: protects tokens shared by answers.
    Choose it when: right and wrong answers begin or end with the same tokens, so that wrong ones
    make the policy unlearn the format, and you keep no reference model.
    Equation: loss = -1/G sum_i d_i (A_i - gamma H_i) mean_t lambda_t logp_t, A_i = R_i - mean_g;
    lambda = w_forward w_backward, w = weight if A_i > 0 and 0 if A_i < 0 on tokens in conflict,
    else 1; d_i = 0 where H_i > threshold, if the initial policy's entropy was not above it.
    Differs from the parent: no deviation, no clip; prefixes and suffixes that good and bad rollouts
    share are not unlearned; high-entropy rollouts are penalised or left out.
    Differs from the paper: this is the README's formula (the paper was not read); conflicts are
    counted as intended, where the code's counts mix positions of both directions. Groups with equal
    outcomes pay gamma H too, as in both.
    Try: gamma, weight, threshold (inf: train on all), variant.
    """
    check_choice("gtpo_conflict", THRESHOLDS, variant=variant)
    released = variant == "code"
    algorithm = grpo(normalize_std=False, singleton="zero", **parent)
    algorithm = with_policy(algorithm, objective=Use(FollowAdvantage()), ratio=None)
    centre, spread = algorithm.advantage
    bound = threshold or THRESHOLDS[variant]
    protect = ProtectSharedTokens(weight, share_out=released)
    held = DropUnsureRollouts(bound, initial=0.0 if released else -1.0)
    return dataclasses.replace(
        algorithm,
        advantage=(centre, Use(ChargeEntropy(gamma)), spread, Use(protect)),
        selection=(Use(held),),
        control=() if released else (Use(CarryMetricForward(KNOB, keep="first")),),
    )
