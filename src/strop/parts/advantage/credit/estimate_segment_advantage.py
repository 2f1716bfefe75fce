"""Credit the choice of a subgoal by the segment that it opened, and each switch by what is left."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import Result, require


@dataclass(frozen=True)
class EstimateSegmentAdvantage:
    """A subgoal is credited with how much better than expected its segment, as one turn, went.

        delta_s = sum_{j in s} gamma^j r_j + gamma^d V_{s+1} - V_s        (d turns in segment s)
        A_s = delta_s + gamma^d lam_seg A_{s+1},   return_s = A_s + V_s, at the segment's first turn
        left_k = r_k + gamma left_{k+1} in the segment, V_{s+1} after it;    switch: left_k - W_k

    V is value_K of a segment's first turn, W switch_value_K (0 where nothing gives it). A segment
    begins with the rollout and with every turn that switches. After a turn that is done: 0; after a
    rollout that was cut: 0, or V_s of its last segment with bootstrap_truncated.

    Reads: value_K, reward_K [K] float, switch_K, done_K [K] bool, rollout_K [K] int, scored_B [B]
    bool; switch_value_K [K] float where there.   Writes: segment_advantage_K, segment_return_K (0
    but at first turns), switch_advantage_K, switch_return_K [K] float.
    Source: arXiv 2602.16165; code JonP07/HiPER-agent (hiper_hae/core_hae.py).
    Differs from the source: no. The paper's text credits a switch with V_high - V_low.
    Nearest part: estimate_turn_advantage; equal to it where every turn switches.
    Edges: turns of unscored rollouts -> 0; values get no gradient.
    """

    writes: ClassVar[tuple[str, ...]] = (
        "segment_advantage_K", "segment_return_K", "switch_advantage_K", "switch_return_K",
    )  # fmt: skip
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "switch_value_K", "float", "baseline of a switch, from a critic of its own", "reward"
        ),
        Column(
            "segment_advantage_K", "float", "advantage of the segment that begins there", "reward"
        ),
        Column("segment_return_K", "float", "target of the segment's value", "reward"),
        Column("switch_advantage_K", "float", "advantage of having switched", "reward"),
        Column("switch_return_K", "float", "target of the switch's value", "reward"),
    )
    # Discount of a turn. Default: released code (1).
    gamma: float = 1.0
    # How far surprises reach back over segments, 0 to 1. Default: released code (0.95).
    lam_seg: float = 0.95
    # Whether an episode that was cut counts as continuing. Default: released code (ALFWorld).
    bootstrap_truncated: bool = True

    def __post_init__(self) -> None:
        require(self, "gamma", "lam_seg", low=0.0, high=1.0)

    def __call__(
        self,
        value_K: Tensor,
        reward_K: Tensor,
        switch_K: Tensor,
        done_K: Tensor,
        rollout_K: Tensor,
        scored_B: Tensor,
        switch_value_K: Tensor | None = None,
    ) -> Result:
        value_K, reward, done_K = value_K.detach().double(), reward_K.double(), done_K.bool()
        first_K = segments.begins(rollout_K)
        begins_K = first_K | switch_K.bool()
        segment_K = (begins_K.long().cumsum(0) - 1).clamp(min=0)
        ends_K = begins_K.roll(-1)
        own_K = value_K[begins_K][segment_K] if begins_K.numel() else value_K
        cut_K = own_K if self.bootstrap_truncated else torch.zeros_like(value_K)
        ahead_K = torch.where(first_K.roll(-1), cut_K, value_K.roll(-1))
        ahead_K = torch.where(ends_K & ~done_K, ahead_K, 0)
        gain_K = reward + self.gamma * ahead_K
        surprise_K = gain_K - torch.where(begins_K, value_K, 0)
        # Credit passes a segment's boundary times lam_seg, and the end of an episode not at all.
        carried_K = torch.full_like(value_K, self.gamma)
        carried_K = torch.where(ends_K, carried_K * self.lam_seg, carried_K).masked_fill(done_K, 0)
        credit_K = segments.reward_to_go(surprise_K, rollout_K, carried_K)
        over_K = done_K.long().cumsum(0) - done_K.long()
        left_K = segments.reward_to_go(gain_K, segment_K + over_K, self.gamma)
        counts_K = scored_B[rollout_K]
        expected_K = 0 if switch_value_K is None else switch_value_K.detach().double()
        opens_K = counts_K & begins_K
        found = (
            torch.where(opens_K, credit_K, 0), torch.where(opens_K, credit_K + value_K, 0),
            torch.where(counts_K, left_K - expected_K, 0), torch.where(counts_K, left_K, 0),
        )  # fmt: skip
        return Result(tuple(column.to(reward_K.dtype) for column in found))
