"""Centre every token's return on the mean that makes the gradient vary least."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import Result, require, require_one_of


@dataclass(frozen=True)
class SubtractOptimalTokenMean:
    """A token learns from its rollout's lead over those that have written as much so far.

        advantage_t <- advantage_t - sum_{s at t's place} W_s advantage_s / (sum_s W_s + eps)
        W_t = sum of w over the rollout up to t,   w = (1 - 2 exp(logp_old) + sum_pi_squared) rho^2

    s runs over the rollouts of the group that have a policy token at the same place: the n-th
    "policy" token, or the n-th token of "any" origin from the first policy token on. w is the
    squared norm of the score in the logits; rho is rollout_is_weights where given, else 1.

    Reads: advantage_T, logp_old_T, sum_pi_squared_old_T [T] float, group_T, rollout_T [T] int,
    num_groups int, mask_T [T] bool, scored_B [B] bool; rollout_is_weights_T [T] float where given.
    Writes: advantage_T [T] float.
    Source: arXiv 2602.07078; code verl-project/verl core_algos.py (optimal_token_baseline).
    Differs from the source: no; rollouts without policy tokens are not counted in a group.
    Nearest part: subtract_length_weighted_mean, one mean for whole rollouts, weighed by lengths.
    Edges: group of one -> unchanged; unscored rollouts -> 0 and in no mean.
    """

    writes: ClassVar[tuple[str, ...]] = ("advantage_T",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "rollout_is_weights_T",
            "float",
            "importance weights on the sampling policy",
            random="uniform",
        ),
    )
    # Which tokens are counted to find a token's place: "policy" or "any". Default: released code
    # (its form for several turns; both agree where no other token stands between).
    counted: str = "policy"
    # Whether nothing is subtracted where only one rollout is left. Default: released code.
    handle_zero_tail: bool = True
    # Added to the sum of the weights. Default: released code (verl).
    eps: float = 1e-8

    def __post_init__(self) -> None:
        require_one_of(self, "counted", ("policy", "any"))
        require(self, "eps", low=0.0)

    def __call__(
        self,
        advantage_T: Tensor,
        logp_old_T: Tensor,
        sum_pi_squared_old_T: Tensor,
        group_T: Tensor,
        rollout_T: Tensor,
        mask_T: Tensor,
        scored_B: Tensor,
        num_groups: int,
        rollout_is_weights_T: Tensor | None = None,
    ) -> Result:
        row_M = segments.rows_where(mask_T & segments.at(scored_B, rollout_T))
        rollout_M, num_B = segments.at(rollout_T, row_M), scored_B.shape[0]
        value_M, logp_M = segments.at(advantage_T, row_M), segments.at(logp_old_T, row_M)
        norm_M = logp_M.double().exp_().mul_(-2).add_(1)
        norm_M += segments.at(sum_pi_squared_old_T, row_M)
        if rollout_is_weights_T is not None:
            norm_M *= segments.at(rollout_is_weights_T, row_M).double().square_()
        weight_M = segments.sum_until(norm_M.clamp_(min=0), rollout_M, num_B)
        place_M = segments.place_in_run(rollout_M, num_B)
        if self.counted == "any":
            begin_B = segments.extreme(row_M, rollout_M, num_B, largest=False)
            place_M = row_M - segments.at(begin_B, rollout_M)
        num_places = segments.count_of(place_M)
        group_M = segments.at(group_T, row_M)
        key_M, num = (group_M * num_places).add_(place_M), num_groups * num_places
        size_N = segments.count(key_M, num)
        plain_N = (segments.total(value_M.double(), key_M, num) / size_N).to(value_M.dtype)
        total_N = segments.total(weight_M, key_M, num) + self.eps
        mean_N = segments.divided(segments.total(weight_M * value_M, key_M, num), total_N)
        row_S = segments.rows_where(size_N > 1)
        shift_S, size_S = segments.at(mean_N - plain_N, row_S).abs_(), segments.at(size_N, row_S)
        shift = float((shift_S * size_S).sum() / size_S.sum().clamp(min=1))
        if self.handle_zero_tail:
            mean_N.masked_fill_(size_N == 1, 0)
        alone_P = segments.count(group_M, num_groups, place_M == 0) == 1
        mean_N.view(num_groups, num_places).masked_fill_(alone_P[:, None], 0)
        value_M = value_M - segments.at(mean_N.to(advantage_T.dtype), key_M)
        centred_T = torch.zeros_like(advantage_T).index_copy_(0, row_M, value_M)
        return Result(centred_T, metrics={"advantage/baseline_shift": shift})
