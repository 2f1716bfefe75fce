"""Give every success one and the same advantage, whatever its group."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.method.part import require


@dataclass(frozen=True)
class FixPraiseOfSuccesses:
    """A success is learnt as strongly in a group of successes as it is in one of failures.

        advantage_i <- praise if reward_i >= success, else advantage_i

    Reads: advantage_B [B] float, reward_B [B] float, scored_B [B] bool.
    Writes: advantage_B [B] float.
    Source: arXiv 2601.03715; code only there: success by the reward, praise 1.
    Differs from the source: its text gives 3 to the best rewards.
    Nearest part: weigh_signs.
    Edges: unscored rollouts -> 0; a group with successes only still teaches.
    """

    facts: ClassVar[frozenset[str]] = frozenset(
        {"advantage_mean_is_not_zero", "learns_from_uniform_groups"}
    )
    # Reward from which a rollout is a success. Default: released code (1).
    success: float = 1.0
    # Advantage of a success. Default: released code (1; paper: 3).
    praise: float = 1.0

    def __post_init__(self) -> None:
        require(self, "success")
        require(self, "praise", low=0.0)

    def __call__(self, advantage_B: Tensor, reward_B: Tensor, scored_B: Tensor) -> Tensor:
        fixed_B = torch.where(reward_B >= self.success, self.praise, advantage_B)
        return torch.where(scored_B, fixed_B, 0)
