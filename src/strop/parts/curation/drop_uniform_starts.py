"""Train on prompts whose rollouts differ at one turn, and sample more until there are enough."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.batch import segments
from strop.method.part import Curated, Result, require
from strop.parts.curation._refill import START, refill


@dataclass(frozen=True)
class DropUniformStarts:
    """Prompts whose rollouts all have the same value at the start, or the end, take no place.

        live: biased std of return_K at turn 0, or the last, over the group's scored rollouts
              > min_std, or one scored rollout
        while live < target and rounds < max_rounds: sample `target - live` more prompts
        then keep the first `target` live groups

    Metrics: as drop_uniform_groups.

    Reads: return_K [K] float, rollout_K [K] int, group_B [B] int, num_groups int, scored_B [B]
    bool.   Writes: rows to keep.
    Source: arXiv 2509.11543 (filter on the advantages' spread); arXiv 2602.05885 (last turn).
    Differs from the source: requests the missing prompts, not a whole batch again.
    Nearest part: drop_uniform_groups, which compares outcomes.
    Edges: no scored rollout -> dropped; when the rounds run out it continues with what there is. A
    restart loses nothing: the round count is 0 between steps.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"removes_uniform_groups"})
    # Deviation that a group must exceed. Default: paper (0.3).
    min_std: float = 0.3
    # Prompts wanted; 0: as many as the sampler drew first. Default: paper (the sampled batch).
    num_prompts: int = 0
    # Rounds of sampling a step, the first included; 1: no refill; 0: no limit. Default: ours.
    max_rounds: int = 10
    # Whether to compare each rollout's last turn, not turn 0. Default: paper (the first).
    last: bool = False

    def __post_init__(self) -> None:
        require(self, "min_std", low=0.0)
        require(self, "num_prompts", "max_rounds", low=0)

    def init(self) -> dict[str, int]:
        """The initial state: no round has started."""
        return dict(START)

    def __call__(
        self,
        return_K: Tensor,
        rollout_K: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        state: dict[str, int],
        num_groups: int,
    ) -> Result:
        num = group_B.shape[0]
        row_B = segments.first(rollout_K, num)
        if self.last:
            row_B = row_B + segments.count(rollout_K, num) - 1
        start_B = return_K[row_B]
        spread_P = segments.std(start_B, group_B, num_groups, scored_B, ddof=0)
        size_P = segments.count(group_B, num_groups, scored_B)
        live_P = (spread_P > self.min_std) | (size_P == 1)
        limits = (self.num_prompts, self.max_rounds)
        keep_B, ask, state, metrics = refill(live_P, group_B, state, *limits)
        return Result(Curated(keep_B, "uniform_start", ask=ask), state, metrics)
