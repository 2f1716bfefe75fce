"""Classifies turns as good or bad by how much closer they came to the end.

Source: arXiv 2602.09021 (stage advantage); code OpenDriveLab/kai0. There the rows are frames of a
robot's demonstrations; here they are turns of a language agent. All tensors are [N], one entry per
turn, the turns of an episode together and in order.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from strop.batch import segments
from strop.support.errors import UserError

Estimator = Callable[[Tensor, Tensor], Tensor]  # rows (from, to) -> progress between them


def stage_progress(stage_N: Tensor, episode_N: Tensor, num_stages: int) -> Tensor:
    """What an estimator learns: (stage + place within the stage) / num_stages, in [0, 1).

    stage_N counts from 0; the place is the turn's share of the stage's turns in its episode.
    Raises UserError for a stage outside 0 to num_stages - 1.
    """
    if stage_N.numel() and not 0 <= int(stage_N.min()) <= int(stage_N.max()) < num_stages:
        raise UserError(f"stages must be numbers from 0 to {num_stages - 1}")
    key_N, num = segments.key_of(episode_N, stage_N)
    place_N = segments.order_within(key_N, num).double()
    share_N = place_N / segments.count(key_N, num)[key_N]
    return (stage_N + share_N) / num_stages


def look_ahead(
    episode_N: Tensor,
    horizon: int = 50,
    *,
    value_N: Tensor | None = None,
    estimator: Estimator | None = None,
) -> Tensor:
    """Progress over the next `horizon` turns, or to the last one, in [-1, 1].

    value_N: progress of every turn (its difference is taken); or `estimator`, which estimates the
    progress between two rows. With fewer turns left than the horizon it is scaled up; with none it
    is 0.
    """
    if horizon < 1 or (value_N is None) == (estimator is None):
        raise UserError("look_ahead takes value_N or an estimator, and a horizon of at least 1")
    key_N, num = segments.key_of(episode_N)
    left_N = (segments.count(key_N, num) - 1)[key_N] - segments.order_within(key_N, num)
    gap_N = left_N.clamp(max=horizon)
    row_N = torch.arange(key_N.shape[0], device=key_N.device)
    if estimator is not None:
        gain_N = estimator(row_N, row_N + gap_N)
    else:
        assert value_N is not None
        gain_N = value_N[row_N + gap_N] - value_N
    scaled_N = gain_N.double() * horizon / gap_N.clamp(min=1)
    return torch.where(gap_N > 0, scaled_N, 0).clamp(-1, 1)


def top_share(advantage_N: Tensor, percent: float = 70.0, stage_N: Tensor | None = None) -> Tensor:
    """Whether a turn [N] bool is among the top `percent` percent, of all or of its stage's turns.

    Of n turns the round(n percent / 100) with the largest advantages are; ties go to the first.
    """
    if not 0 <= percent <= 100:
        raise UserError(f"percent must lie between 0 and 100, it is {percent}")
    key_N = segments.one_key(advantage_N) if stage_N is None else stage_N
    key_N, num = segments.key_of(key_N)
    taken = (segments.count(key_N, num) * percent / 100).round()
    return segments.rank(-advantage_N, key_N, num) < taken[key_N]


def slices(advantage_N: Tensor, num_slices: int = 10) -> Tensor:
    """Which of `num_slices` equally large bins [N] int a turn is in, 0 the worst."""
    if num_slices < 1:
        raise UserError(f"there must be one bin or more, not {num_slices}")
    one_N = segments.one_key(advantage_N)
    place_N = segments.rank(advantage_N, one_N, 1)
    return place_N * num_slices // max(advantage_N.shape[0], 1)
