"""Let praise and blame count differently, or drop one of them."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class WeighSigns:
    """Rollouts better than their peers count by one weight, worse ones by another.

        advantage_i <- positive * max(advantage_i, 0) + negative * min(advantage_i, 0)

    Blame alone (positive 0) spreads probability over what was not sampled in proportion to what
    it has, so entropy and pass@k of large k hold up; praise alone sharpens.

    Reads: advantage_B [B] float, scored_B [B] bool.   Writes: advantage_B [B] float.
    Source: arXiv 2510.04028 (negative part of the advantage, GRPO-N).
    Differs from the source: it has positive 0 and negative 1.
    Nearest part: damp_praise_while_weak; nothing changes when both weights are 1.
    Edges: unscored rollouts -> 0; rollouts stay in averages, whatever their weight.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"advantage_mean_is_not_zero"})
    # Weight of advantages above 0. Default: paper (0, they are dropped).
    positive: float = 0.0
    # Weight of advantages below 0. Default: paper (1).
    negative: float = 1.0

    def __post_init__(self) -> None:
        require(self, "positive", "negative", low=0.0)

    def __call__(self, advantage_B: Tensor, scored_B: Tensor) -> Result:
        weight_B = torch.where(advantage_B > 0, self.positive, self.negative)
        weighed_B = torch.where(scored_B, weight_B.to(advantage_B.dtype) * advantage_B, 0)
        learns_B = scored_B & (advantage_B != 0)
        metrics = {"advantage/sign_weight": segments.overall(weight_B, learns_B)}
        return Result(weighed_B, metrics=metrics)
