"""The dual clip, which bounds what a bad token's ratio can do."""

import torch
from torch import Tensor

from strop.parts.loss.bound._bounds import Clipped

HELD = "clip_ratio/dual_mean"


def dual_clipped(clipped: Clipped, advantage_T: Tensor, dual_clip_c: float) -> Clipped:
    """The same, but at least dual_clip_c * A where A < 0; unchanged for 0."""
    if not dual_clip_c:
        return clipped
    floor_T = dual_clip_c * advantage_T
    under_T = (advantage_T < 0) & (clipped.value < floor_T)
    objective_T = torch.where(under_T, floor_T, clipped.value)
    return Clipped(objective_T, clipped.held_T, {**clipped.metrics, HELD: under_T.float()})


def unlogged(dual_clip_c: float) -> frozenset[str]:
    """What is not logged without a dual clip."""
    return frozenset() if dual_clip_c else frozenset({HELD})
