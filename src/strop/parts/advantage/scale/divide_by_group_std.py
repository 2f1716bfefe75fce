"""Give every prompt's group advantages of the same spread."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import require, require_one_of


@dataclass(frozen=True)
class DivideByGroupStd:
    """Easy and hard prompts push equally hard: advantages are measured in group deviations.

        advantage_i <- advantage_i / (factor max(std_{j in group} advantage_j, floor) + eps)

    The deviation of centred advantages equals that of the rewards. With num_imagined the group
    also holds so many imagined members, each at -(sum of the group) / num_imagined: what
    subtract_group_mean with num_imagined leaves of its perfect answers.

    Reads: advantage_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool.
    Writes: advantage_B [B] float.
    Source: arXiv 2402.03300, sec. 4.1.2 (the denominator of the outcome advantage);
    imagined members arXiv 2509.18851; factor arXiv 2601.19620.
    Differs from the source: no.
    Nearest part: divide_by_group_mad.
    Edges: group of one -> divided by factor + eps; all 0 -> 0; all equal otherwise -> divided by
    factor floor + eps (0 where that is 0), so centre them before; unscored rollouts -> 0 and
    outside the deviation.
    """

    equals: ClassVar[dict[str, str]] = {
        "num_imagined": "advantage.subtract_group_mean.num_imagined"
    }
    # Added to the deviation; in reward units. Default: released code (verl; TRL has 1e-4).
    eps: float = 1e-6
    # "unbiased" (n - 1) or "biased" (n). Default: released code (verl, TRL, OpenRLHF).
    std: str = "unbiased"
    # Imagined members of each group. Default: ours (none; the parts above say how many they had).
    num_imagined: int = 0
    # Smallest deviation that is divided by. Default: ours (none; arXiv 2502.01600's code has 1e-7).
    floor: float = 0.0
    # Factor of the deviation. Default: ours (1).
    factor: float = 1.0

    def __post_init__(self) -> None:
        require(self, "eps", "floor", "factor", low=0.0)
        require(self, "num_imagined", low=0)
        require_one_of(self, "std", ("unbiased", "biased"))

    def __call__(
        self, advantage_B: Tensor, group_B: Tensor, scored_B: Tensor, num_groups: int
    ) -> Tensor:
        ddof = 1 if self.std == "unbiased" else 0
        std_P = segments.std(advantage_B, group_B, num_groups, scored_B, ddof)
        if self.num_imagined:
            std_P = self._with_imagined(advantage_B, group_B, num_groups, scored_B, ddof)
        std_P = torch.where(segments.count(group_B, num_groups, scored_B) == 1, 1.0, std_P)
        std_P = std_P.clamp(min=self.floor) if self.floor else std_P
        scaled_B = segments.divided(advantage_B, (self.factor * std_P + self.eps)[group_B])
        return torch.where(scored_B, scaled_B, 0)

    def _with_imagined(
        self, advantage_B: Tensor, group_B: Tensor, num: int, scored_B: Tensor, ddof: int
    ) -> Tensor:
        """Deviation per group [P] of its members and the imagined ones, whose sum is 0."""
        sum_P = segments.total(advantage_B, group_B, num, scored_B).double()
        squares_P = segments.total(advantage_B.double() ** 2, group_B, num, scored_B)
        size_P = segments.count(group_B, num, scored_B) + self.num_imagined
        squares_P = squares_P + sum_P**2 / self.num_imagined
        return (squares_P / (size_P - ddof).clamp(min=1)).sqrt().to(advantage_B.dtype)
