"""How long good and bad rollouts of a group agree, as `protect_shared_tokens` needs it."""

import torch
from torch import Tensor

from strop.batch import segments

PLACES = 8  # compared first


def conflict_length(
    first_B: Tensor,
    step: int,
    size_B: Tensor,
    group_B: Tensor,
    num_groups: int,
    good_B: Tensor,
    id_N: Tensor,
) -> Tensor:
    """Number of first tokens of a rollout [B] that good and bad ones of its group both have.

    A rollout's tokens are `size_B` rows of `id_N`, from `first_B` on by steps of `step`. Eight
    places are compared first, then eight times as many, until every rollout has met a token out of
    conflict or its end. All places at once would sort every token, although conflicts mostly end
    early; fewer at a time would wait for the device more often.
    """
    num, row_B = size_B.shape[0], torch.arange(size_B.shape[0], device=size_B.device)
    length_B, open_B, low, high = torch.zeros_like(size_B), size_B > 0, 0, PLACES
    while bool(open_B.any()):
        of_open_B = segments.among(group_B, group_B[open_B], num_groups) & (size_B > low)
        own_M = torch.repeat_interleave(row_B, (size_B.clamp(max=high) - low) * of_open_B)
        place_M = low + segments.place_in_run(own_M, num)
        id_M = id_N[first_B[own_M] + step * place_M]
        key_M, num_keys = segments.key_of(group_B[own_M], place_M, id_M)
        good = segments.count(key_M, num_keys, good_B[own_M]) > 0
        bad = segments.count(key_M, num_keys, ~good_B[own_M]) > 0
        alone_M = ~(good & bad)[key_M]
        stops_B = segments.count(own_M, num, alone_M) > 0
        stop_B = segments.extreme(place_M, own_M, num, alone_M, largest=False)
        reached_B = torch.where(stops_B, stop_B, size_B.clamp(max=high))
        length_B = torch.where(open_B, reached_B, length_B)
        open_B = open_B & ~stops_B & (size_B > high)
        low, high = high, PLACES * high
    return length_B
