"""How far a baseline lies from the plain mean of the group."""

from torch import Tensor

from strop.batch import segments


def shift_of(
    advantage_B: Tensor, reward_B: Tensor, group_B: Tensor, num_groups: int, scored_B: Tensor
) -> dict[str, float]:
    """Mean absolute difference between `advantage_B` and `reward_B` less the mean of its group.

    Only scored rollouts with a scored peer count: a group of one has no mean to compare with.
    """
    plain_B = segments.centred(reward_B, group_B, num_groups, scored_B)
    peers_B = scored_B & (segments.count(group_B, num_groups, scored_B) > 1)[group_B]
    return {"advantage/baseline_shift": segments.overall((advantage_B - plain_B).abs(), peers_B)}
