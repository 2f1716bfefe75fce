"""Pay every turn of a rollout with what the rollout earned, later turns with more of it."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.batch import segments
from strop.method.part import require


@dataclass(frozen=True)
class ShareRewardAmongTurns:
    """Earlier turns are paid less of what all earned together; at share 0 the last turn gets all.

        reward_k <- share^(turns that follow k in its rollout) * advantage_i

    advantage_i is the rollout's reward: the part stands before any baseline. What the environment
    gave to single turns is in that sum and counts no more where it was given.

    Reads: advantage_B [B] float, rollout_K [K] int, num_rollouts int.   Writes: reward_K [K] float.
    Source: arXiv 2504.16129; code jwliao-ai/MARFT (areal/workflow/multi_agent/credit.py, "equal"
    at 0 and "step_discount").
    Differs from the source: no.
    Nearest part: discount_from_end, which discounts over tokens.
    Edges: share 1 -> every turn has the whole; a rollout of one turn -> all of it.
    """

    writes: ClassVar[tuple[str, ...]] = ("reward_K",)
    # Factor for each turn that follows. Default: released code ("equal": the last alone).
    share: float = 0.0

    def __post_init__(self) -> None:
        require(self, "share", low=0.0, high=1.0)

    def __call__(self, advantage_B: Tensor, rollout_K: Tensor, num_rollouts: int) -> Tensor:
        turns_K = segments.count(rollout_K, num_rollouts)[rollout_K]
        after_K = turns_K - 1 - segments.place_in_run(rollout_K, num_rollouts)
        return advantage_B[rollout_K] * self.share ** after_K.to(advantage_B.dtype)
