"""Give the tokens of each block of a turn the advantage of what the block decided."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class SpreadOverSpans:
    """Actions, subgoals and switches are credited separately, each by an advantage of its own.

        advantage_t = A_k [t in the action] + S_k [t in the subgoal, k begins a segment]
                      + W_k [t in the switch];       learning_t = t in one of these

    With normalize, A, S and W are first (x - mean) / (std + eps) over the batch's turns that have
    such tokens, std with n.

    Reads: advantage_K (A), segment_advantage_K (S), switch_advantage_K (W) [K] float, switch_K [K]
    bool, rollout_K [K] int, turn_T [T] int, mask_T [T] bool, scored_B [B] bool; span_T
    [T] int (1 switch, 2 subgoal, 4 action), without which all is action.
    Writes: advantage_T [T] float, learning_T [T] bool.
    Source: arXiv 2602.16165; code JonP07/HiPER-agent (hiper_hae/core_hae.py).
    Differs from the source: no.
    Nearest part: spread_turns; equal to it without spans and normalize.
    Edges: masked tokens, unscored rollouts and tokens outside blocks -> 0; one turn alone -> 0 with
    normalize.
    """

    writes: ClassVar[tuple[str, ...]] = ("advantage_T", "learning_T")
    # Whether each level is normalised over the batch. Default: released code (on).
    normalize: bool = True
    # Added to the deviation, reward units. Default: released code.
    eps: float = 1e-8

    def __post_init__(self) -> None:
        require(self, "eps", low=0.0)

    def __call__(
        self,
        advantage_K: Tensor,
        segment_advantage_K: Tensor,
        switch_advantage_K: Tensor,
        switch_K: Tensor,
        rollout_K: Tensor,
        turn_T: Tensor,
        mask_T: Tensor,
        scored_B: Tensor,
        span_T: Tensor | None = None,
    ) -> Result:
        num = rollout_K.shape[0]
        learns_T = mask_T & segments.at(scored_B[rollout_K], turn_T)
        bits_T = torch.full_like(turn_T, 4) if span_T is None else span_T
        begins_K = switch_K.bool() | segments.begins(rollout_K)
        for_K = ((4, advantage_K), (2, segment_advantage_K), (1, switch_advantage_K))
        levels = [(learns_T & ((bits_T & bit) > 0), level_K) for bit, level_K in for_K]
        levels[1] = (levels[1][0] & segments.at(begins_K, turn_T), levels[1][1])
        parts = [self._level(here_T, level_K, turn_T, num) for here_T, level_K in levels]
        advantage_T = parts[0] + parts[1] + parts[2]
        return Result((advantage_T, levels[0][0] | levels[1][0] | levels[2][0]))

    def _level(self, here_T: Tensor, level_K: Tensor, turn_T: Tensor, num: int) -> Tensor:
        """A level's advantage [T] on its tokens, 0 elsewhere."""
        if self.normalize:
            has_K = segments.count(turn_T, num, here_T) > 0
            one_K = torch.zeros(num, dtype=torch.int64, device=turn_T.device)
            centred_K, std = segments.centred_and_std(level_K, one_K, 1, has_K, ddof=0)
            level_K = segments.divided(centred_K, std + self.eps)
        return torch.where(here_T, segments.at(level_K, turn_T), 0)
