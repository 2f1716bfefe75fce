"""One answer a prompt against the prompt's past success, and a bonus on high-entropy tokens."""

import dataclasses
from typing import Any

from torch import Tensor

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.baseline.subtract_tracked_success import SubtractTrackedSuccess
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.advantage.scale.divide_by_group_std import DivideByGroupStd
from strop.parts.advantage.weight.add_capped_bonus import AddCappedBonus
from strop.parts.sampling.estimate_success_first import EstimateSuccessFirst
from strop.recipes._base import ESTIMATOR, check_choice
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo
from strop.support.errors import UserError

SHAPING = ("shaping", "use_entropy_shaping")  # its code's switch, in the padded calls
WHOLE = (("group_B", "whole_B"),)  # all rollouts of the step as group 0


def _success(outcomes: Tensor) -> Tensor:
    """The success [B] that answers before training had, of outcomes [B, n_0] or [B]."""
    return outcomes if outcomes.dim() < 2 else outcomes.double().nanmean(1)


def _shaping(params: dict[str, Any]) -> dict[str, Any]:
    """Without entropy shaping the bonus has the weight 0."""
    given = {name: params[name] for name in SHAPING if name in params}
    found = {name: value for name, value in params.items() if name not in given}
    for name, on in given.items():
        if not isinstance(on, bool):
            raise UserError(f"recipe mssr: {name} is true or false, it is {on!r}")
        if not on and found.setdefault("alpha", 0.0):
            raise UserError(f"recipe mssr: without {name} alpha is 0: leave one of the two out")
    return found


@door(tensors={"initial_outcomes": ("first_success", _success)}, prepare=_shaping, prepared=SHAPING)
@inherits(
    grpo, without=ESTIMATOR, beta=0.01, aggregation="token-mean", num_prompts=512, num_rollouts=1
)
def mssr(
    *,
    # Bonus per nat of a token's entropy; 0: none (MVSR, the paper's baseline).
    alpha: float = 0.4,
    # The bonus is at most the advantage's size divided by this.
    kappa: float = 2.0,
    # Factor on a prompt's history after each answer: smallest and largest.
    rho_min: float = 0.875,
    rho_max: float = 0.96,
    # KL to the reference, nats a token, at which the factor is smallest; steps over which it is
    # taken.
    target_kl: float = 0.01,
    kl_window: int = 10,
    # Answers to each prompt before training, to start its history.
    n_0: int = 1,
    # "paper", or "code": rho jumps at target_kl and uses the step's own KL, the bonus is on -p log
    # p of the sampled token.
    variant: str = "paper",
    **parent: Any,
) -> Algorithm:
    """Stable and Efficient Single-Rollout RL for Multimodal Reasoning (MSSR).

    arXiv 2512.18215. Code: ruiiu/MSSR. Parent: grpo. Status: exact.

    Family: baselines.
    In short: baseline from the prompt's past.
    Choose it when: a group for every prompt is too expensive, and prompts recur often enough that
    each one's past success rate can be the baseline.
    Equation: r_i = R_i - a / (a + b); A_i = (r_i - mean r) / sqrt(max(var r, 1e-6)) over the step;
    A_t = A_i + min(alpha H_t, |A_i| / kappa); then a <- rho a + [R_i > 0.5], b likewise; rho
    from rho_max at KL 0 to rho_min at target_kl.
    Differs from the parent: one rollout a prompt, whose tracked success is the baseline; the
    deviation is the step's; an entropy bonus on advantages; all tokens weigh the same (as in its
    code).
    Differs from the paper: the code's rho rises with the KL up to the target and jumps to rho_min
    above it, contrary to its stated aim, and uses the step's own KL; its "entropy" is the sampled
    token's share of it (all of this: variant "code"). Images are left out. Mini-batches of 128 of
    2048: plan.num_minibatches. A step has one update, not 16 (`num_minibatches=16`), which took
    more time.
    Try: alpha, kappa, num_prompts (2048, the paper's), n_0 (0: every prompt starts at 0.5).
    """
    check_choice("mssr", ("paper", "code"), variant=variant)
    released = variant == "code"
    tracker = SubtractTrackedSuccess((rho_min, rho_max), target_kl, kl_window, variant)
    column = (("bonus_T", "logp_old_T"),) if released else ()
    bonus = Use(AddCappedBonus(alpha, kappa, of_logp=released), columns=column)
    algorithm = grpo(**parent)
    return dataclasses.replace(
        algorithm,
        sampling=(*algorithm.sampling, Use(EstimateSuccessFirst(n_0))),
        advantage=(
            Use(tracker),
            Use(SubtractGroupMean("raw"), columns=WHOLE),
            Use(DivideByGroupStd(0.0, "biased", floor=1e-3), columns=WHOLE),
            Use(SpreadEvenly()),
            *((bonus,) if alpha else ()),
        ),
    )
