"""Do not unlearn the beginnings and ends that good and bad rollouts of a prompt share."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop import segments
from strop.part import require


@dataclass(frozen=True)
class ProtectSharedTokens:
    """A token of a run that good and bad rollouts share is praised more and not blamed.

        advantage_t <- advantage_t * w_forward * w_backward;   in conflict: w = weight where
        reward_i > mean of the group, 0 where reward_i < mean;   not in conflict: w = 1

    Forward conflict: at this and all earlier places of the answer, the same place of a good and of
    a bad rollout of the group holds the same token. Backward: the same, counted from the end.
    With `share_out` the result is divided by max(1, rollout's tokens in conflict).

    Reads: advantage_T [T] float, reward_B [B] float, scored_B [B] bool, id_T, rollout_T [T] int,
    group_B [B] int, num_groups int, mask_T [T] bool.   Writes: advantage_T [T] float.
    Source: arXiv 2508.03772; code winstonsmith1897/GTPO (share_out is only there).
    Differs from the source: its backward pass masks other tokens than it means to, and its count
    takes places of both directions for the same; both are done right here.
    Nearest part: favour_early_marker.
    Edges: reward at the mean -> unchanged and in no conflict; a group without good or without bad
    rollouts -> unchanged; unscored and masked -> 0.
    """

    # Factor on good rollouts' tokens in conflict. Default: paper (2; 4 where both runs meet).
    weight: float = 2.0
    # Whether a rollout with more conflicts is trained on less. Default: paper (no).
    share_out: bool = False

    def __post_init__(self) -> None:
        require(self, "weight", low=0.0)

    def __call__(
        self,
        advantage_T: Tensor,
        reward_B: Tensor,
        scored_B: Tensor,
        id_T: Tensor,
        rollout_T: Tensor,
        group_B: Tensor,
        mask_T: Tensor,
        num_groups: int,
    ) -> Tensor:
        lead_B = segments.centred(reward_B, group_B, num_groups, scored_B)
        lead_B = torch.where(scored_B, lead_B, 0)
        row = (mask_T & (lead_B != 0)[rollout_T]).nonzero().squeeze(1)
        own_N, id_N, good_N = rollout_T[row], id_T[row], (lead_B > 0)[rollout_T[row]]
        rows, num = (own_N, group_B[own_N], id_N, good_N), group_B.shape[0]
        forward_N = _in_conflict(num, *rows)
        # The same rows from the last to the first one.
        backward_N = _in_conflict(num, *(x.flip(0) for x in rows))
        backward_N = backward_N.flip(0)
        base_N = torch.where(good_N, self.weight, 0.0).to(advantage_T.dtype)
        factor_N = torch.where(forward_N, base_N, 1) * torch.where(backward_N, base_N, 1)
        if self.share_out:
            count_B = segments.count(own_N, num, forward_N | backward_N)
            factor_N = factor_N / count_B.clamp(min=1)[own_N]
        factor_T = torch.ones_like(advantage_T).index_put((row,), factor_N)
        return torch.where(mask_T & scored_B[rollout_T], advantage_T * factor_T, 0)


def _in_conflict(num: int, own_N: Tensor, group_N: Tensor, id_N: Tensor, good_N: Tensor) -> Tensor:
    """Whether a token [N] and all before it in its rollout stand in a good and in a bad one.

    The rows of a rollout lie together, in the order in which places are counted.
    """
    place_N = segments.place_in_run(own_N, num)
    key_N, num_keys = segments.key_of(group_N, place_N, id_N)
    good = segments.count(key_N, num_keys, good_N) > 0
    bad = segments.count(key_N, num_keys, ~good_N) > 0
    alone_N = ~(good & bad)[key_N]
    first_alone = segments.extreme(place_N, own_N, num, alone_N, largest=False)
    has_alone = segments.count(own_N, num, alone_N) > 0
    return (place_N < first_alone[own_N]) | ~has_alone[own_N]
