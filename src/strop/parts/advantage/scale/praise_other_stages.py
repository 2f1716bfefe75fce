"""Learn equally from all good rollouts of another phase, and not at all from its bad ones."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.method.part import require


@dataclass(frozen=True)
class PraiseOtherStages:
    """Rollouts of a later phase are imitated where they are better than their group, else ignored.

        advantage_i <- praise if advantage_i > smallest, else 0, for i of a stage above 0

    Reads: advantage_B [B] float, stage_B [B] int, scored_B [B] bool.
    Writes: advantage_B [B] float.
    Source: code only: 597358816/AEPO (the method of arXiv 2510.08141).
    Differs from the source: no.
    Nearest part: damp_praise_while_weak.
    Edges: stage 0 -> unchanged; unscored rollouts -> 0.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"advantage_mean_is_not_zero"})
    # Advantage above which a rollout is good, reward units. Default: released code.
    smallest: float = 0.05
    # Advantage of the good ones. Default: released code.
    praise: float = 1.0

    def __post_init__(self) -> None:
        require(self, "smallest")
        require(self, "praise", low=0.0)

    def __call__(self, advantage_B: Tensor, stage_B: Tensor, scored_B: Tensor) -> Tensor:
        good_B = scored_B & (advantage_B > self.smallest)
        praised_B = torch.where(good_B, self.praise, 0.0).to(advantage_B.dtype)
        plain_B = torch.where(scored_B, advantage_B, 0)
        return torch.where(stage_B > 0, praised_B, plain_B)
