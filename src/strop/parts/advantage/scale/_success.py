"""How often prompts and the whole step succeed, from rewards between 0 and 1."""

import torch
from torch import Tensor

from strop.batch import segments
from strop.support.errors import UserError


def require_rates(reward_B: Tensor, scored_B: Tensor, reader: str) -> None:
    """Raise UserError for a reward outside [0, 1]."""
    outside_B = scored_B & ((reward_B < 0) | (reward_B > 1))
    if bool(outside_B.any()):
        raise UserError(
            f"{reader} takes rewards for rates of success: they must lie between 0 and 1, one is "
            f"{float(reward_B[outside_B][0]):g}; map them there in the reward function"
        )


def success_of_groups(
    reward_B: Tensor, group_B: Tensor, num: int, scored_B: Tensor, reader: str
) -> Tensor:
    """Mean reward [P] of every group. Raises UserError for a reward outside [0, 1]."""
    require_rates(reward_B, scored_B, reader)
    return segments.mean(reward_B, group_B, num, scored_B)


def success_of_step(
    reward_B: Tensor, success_P: Tensor, group_B: Tensor, scored_B: Tensor, by_group: bool
) -> Tensor:
    """Mean reward [] of the scored rollouts of the step, or mean of their groups' means."""
    if by_group:
        there_P = segments.count(group_B, success_P.shape[0], scored_B) > 0
        zero_P = torch.zeros_like(there_P, dtype=torch.int64)
        return segments.mean(success_P, zero_P, 1, there_P)[0]
    return segments.mean(reward_B, torch.zeros_like(group_B), 1, scored_B)[0]
