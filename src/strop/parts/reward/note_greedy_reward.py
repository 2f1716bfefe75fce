"""Give every rollout the reward of its prompt's greedy answer."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import Result


@dataclass(frozen=True)
class NoteGreedyReward:
    """The greedy rollout's reward becomes a column, so that the rollout itself can leave.

        greedy_reward_i = mean reward of the scored rollouts of its group in stage 1
        scored_i <- scored_i and there is such a rollout

    Reads: reward_B [B] float, stage_B [B] int, group_B [B] int, num_groups int, scored_B [B] bool.
    Writes: greedy_reward_B [B] float, scored_B [B] bool.
    Source: arXiv 2310.10505 (the ReMax baseline).
    Differs from the source: no.
    Nearest part: subtract_greedy_reward, which reads the column.
    Edges: a group whose greedy rollout has no score is unscored as a whole: it has no baseline.
    """

    writes: ClassVar[tuple[str, ...]] = ("greedy_reward_B", "scored_B")
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "greedy_reward_B",
            "float",
            "of the prompt's greedy rollout",
            "reward",
            door=("greedy_rewards",),
        ),
    )

    def __call__(
        self, reward_B: Tensor, stage_B: Tensor, group_B: Tensor, scored_B: Tensor, num_groups: int
    ) -> Result:
        greedy_B = scored_B & (stage_B == 1)
        greedy_P = segments.mean(reward_B, group_B, num_groups, greedy_B)
        known_B = (segments.count(group_B, num_groups, greedy_B) > 0)[group_B]
        return Result((greedy_P[group_B], scored_B & known_B))
