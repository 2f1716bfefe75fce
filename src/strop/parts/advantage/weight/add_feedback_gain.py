"""Credit the turns whose feedback changed what the policy did next."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import Result, require
from strop.support.errors import UserError


@dataclass(frozen=True)
class AddFeedbackGain:
    """Where outcomes say little, tokens of turns with informative feedback learn more.

        advantage_t <- advantage_t + weight exp(-decay epoch) g ratio z_t
        g = sigmoid(-std_g(reward) / temperature)
        z_t = (v_t - mean_g) / (std_g + eps) over the group's tokens with v_t != 0, else 0
        v_t = gain_k / policy tokens of turn k;   deviation = (eps, whether z is divided)
        ratio = min(1, max(std(advantage_t) + eps, 1) / (std(z) + eps)) over the step's tokens

    Reads: advantage_T [T], reward_B [B] float, gain_K [K] float, turn_T, rollout_T, group_T [T]
    int, group_B [B] int, num_groups int, mask_T [T] bool, scored_B [B] bool; index_K, rollout_K [K]
    and n_turns_B [B] int where given: gains of a rollout's later turns count as 0.
    Writes: advantage_T [T] float.
    Source: arXiv 2603.00656; code kfq20/InfoPO.
    Differs from the source: no.
    Nearest part: add_capped_bonus.
    Edges: a gain of exactly 0 is no gain; a group's only token with a gain -> z of 0; masked tokens
    and unscored rollouts -> 0, the latter outside the statistics.
    """

    declares: ClassVar[tuple[Column, ...]] = (
        Column("n_turns_B", "int", "turns that the gains count over", "turns", random="key:1:5"),
    )

    # Weight of the gains before gate and ratio. Default: paper (0.5).
    weight: float = 0.5
    # Deviation of the group's rewards at which the gate has mostly closed. Default: paper (0.5).
    temperature: float = 0.5
    # What is added to deviations, and whether z is divided by its own, else only centred. Default:
    # released code.
    deviation: tuple[float, bool] = (1e-6, True)
    # How fast the weight falls with the epochs. Default: paper (0: not).
    decay: float = 0.0
    # Passes over the prompts so far; in a run a schedule such as linear(0, 3). Default: ours.
    epoch: float = 0.0

    def __post_init__(self) -> None:
        require(self, "weight", "decay", "epoch", low=0.0)
        require(self, "temperature", low=1e-9)
        if self.deviation[0] < 0:
            raise UserError(f"add_feedback_gain.deviation begins below 0: {self.deviation}")

    def __call__(
        self,
        advantage_T: Tensor,
        reward_B: Tensor,
        gain_K: Tensor,
        turn_T: Tensor,
        rollout_T: Tensor,
        group_T: Tensor,
        group_B: Tensor,
        mask_T: Tensor,
        scored_B: Tensor,
        num_groups: int,
        index_K: Tensor | None = None,
        rollout_K: Tensor | None = None,
        n_turns_B: Tensor | None = None,
    ) -> Result:
        if n_turns_B is not None and index_K is not None and rollout_K is not None:
            gain_K = torch.where(index_K < n_turns_B[rollout_K], gain_K, 0)
        row_M = segments.rows_where(mask_T & segments.at(scored_B, rollout_T))
        group_M, outcome_M = segments.at(group_T, row_M), segments.at(advantage_T, row_M)
        length_K = segments.count(turn_T, gain_K.shape[0], mask_T)
        value_M = segments.at(gain_K / length_K.clamp(min=1), segments.at(turn_T, row_M))
        has_M = value_M != 0
        centred_M, std_P = segments.centred_and_std(value_M, group_M, num_groups, has_M)
        eps, divided = self.deviation
        if divided:
            centred_M = segments.divided(centred_M, segments.at(std_P + eps, group_M))
        z_M = torch.where(has_M, centred_M, 0)
        all_M = torch.zeros_like(row_M)
        of_outcome = segments.std(outcome_M, all_M, 1) + eps
        of_gain = segments.std(z_M, all_M, 1) + eps
        ratio = (of_outcome.clamp(min=1) / of_gain).clamp(max=1)
        spread_P = segments.std(reward_B, group_B, num_groups, scored_B)
        gate_M = segments.at(torch.sigmoid(-spread_P / self.temperature), group_M)
        weight = self.weight * math.exp(-self.decay * self.epoch)
        shaped_M = outcome_M + weight * gate_M * ratio * z_M
        shaped_T = shaped_M.new_zeros(mask_T.shape).index_copy_(0, row_M, shaped_M)
        metrics = {
            "feedback_gain/gate": segments.overall(gate_M),
            "feedback_gain/frac_tokens": segments.overall(has_M),
        }
        return Result(shaped_T, metrics=metrics)
