"""Compare each token with the tokens at its place in the other rollouts of the prompt."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import require


@dataclass(frozen=True)
class CentreTokensByPosition:
    """A token is credited with the rewards from there on, less the group's mean at that place.

        return_t = reward_t + gamma return_{t+1}
        advantage_t = return_t - mean of the group's returns at t's place

    The place is counted from the rollout's first policy token, tokens of the environment included.
    A turn's reward stands on its last policy token. With `reset_at_masked` the sum ends before the
    next token that is not the policy's. Such a token learns nothing, but its own return, that of
    the policy's tokens right behind it, counts in the means.

    Reads: reward_T [T] or reward_K [K] float, turn_T, rollout_T, group_T [T] int, group_B [B] int,
    num_groups int, mask_T [T] bool, scored_B [B] bool.   Writes: advantage_T [T] float.
    Source: arXiv 2510.14967; code only: GuoqingWang1/IGPO.
    Differs from the source: no.
    Nearest part: centre_turns, which compares turns at the same place.
    Edges: shorter rollouts count as 0 in the means; a group of one -> 0; masked tokens and unscored
    rollouts -> 0, the latter outside the means.
    """

    any_of: ClassVar[tuple[tuple[str, ...], ...]] = (("reward_K", "reward_T"),)
    # Discount of a token. Default: released code (1: none).
    gamma: float = 1.0
    # Whether the sum ends at the environment's tokens. Default: released code (yes).
    reset_at_masked: bool = True

    def __post_init__(self) -> None:
        require(self, "gamma", low=0.0, high=1.0)

    def __call__(
        self,
        turn_T: Tensor,
        rollout_T: Tensor,
        group_T: Tensor,
        group_B: Tensor,
        mask_T: Tensor,
        scored_B: Tensor,
        num_groups: int,
        reward_T: Tensor | None = None,
        reward_K: Tensor | None = None,
    ) -> Tensor:
        own_N = segments.rows_where(mask_T)
        if reward_T is None:
            assert reward_K is not None, "there are rewards of tokens or of turns"
            size_K = segments.count(turn_T, reward_K.shape[0], mask_T)
            reward_T = reward_K.new_zeros(mask_T.shape)
            reward_T[own_N[(size_K.cumsum(0) - 1)[size_K > 0]]] = reward_K[size_K > 0]
        else:
            reward_T = torch.where(mask_T, reward_T, 0)
        if not own_N.numel():
            return reward_T.new_zeros(mask_T.shape)
        return_T = self._returns(reward_T, rollout_T, mask_T)
        counts_T = segments.at(scored_B, rollout_T)
        length_B = segments.count(rollout_T, group_B.shape[0], mask_T)
        start_B = own_N[(length_B.cumsum(0) - length_B).clamp(max=own_N.shape[0] - 1)]
        # Nobody learns from places before the first policy token: all of them are place 0.
        row_T = torch.arange(1, mask_T.shape[0] + 1, device=mask_T.device)
        place_T = row_T.sub_(segments.at(start_B, rollout_T)).clamp_(min=0)
        place_T, num = segments.wide_key_of(group_T, place_T)
        size_P = segments.count(group_B, num_groups, scored_B).clamp(min=1)
        sum_N = segments.total(return_T, place_T, num, counts_T)
        size_T = segments.at(size_P[group_B].to(return_T.dtype), rollout_T)
        centred_T = return_T - segments.at(sum_N, place_T).div_(size_T)
        return torch.where(mask_T & counts_T, centred_T, 0)

    def _returns(self, reward_T: Tensor, rollout_T: Tensor, mask_T: Tensor) -> Tensor:
        """The sum of rewards from each token on [T]; `reward_T` is overwritten."""
        if not self.reset_at_masked:
            return segments.reward_to_go(reward_T, rollout_T, self.gamma)
        # Of tokens that are not the policy's, only those right before a policy token have a return.
        goes_on_T = rollout_T[1:] == rollout_T[:-1]
        before_T = mask_T[1:] & goes_on_T & ~mask_T[:-1]
        counts_T = mask_T.clone()
        counts_T[:-1] |= before_T
        row_N = segments.rows_where(counts_T)
        begins_T = ~mask_T
        begins_T[1:] |= ~goes_on_T
        piece_N = segments.at(begins_T, row_N).cumsum(0)
        return_N = segments.reward_to_go(segments.at(reward_T, row_N), piece_N, self.gamma)
        return reward_T.index_copy_(0, row_N, return_N)
