"""Take rollouts of one phase of the strategy out of the batch."""

from dataclasses import dataclass

from torch import Tensor

from strop.method.part import Curated, require


@dataclass(frozen=True)
class DropRolloutsOfStage:
    """Rollouts that only served as a comparison are not trained on and enter no statistic.

        rollout i leaves the batch if stage_i == stage

    Reads: stage_B [B] int.   Writes: rows to keep.
    Source: arXiv 2310.10505 (the greedy rollout is not trained on).
    Differs from the source: no.
    Nearest part: drop_median_rollout, which stays in the group's statistics.
    Edges: nothing of that stage -> keeps everything.
    """

    # Phase of the strategy whose rollouts leave. Default: ours (sample_with_greedy's greedy rows).
    stage: int = 1

    def __post_init__(self) -> None:
        require(self, "stage", low=0)

    def __call__(self, stage_B: Tensor) -> Curated:
        return Curated(stage_B != self.stage, f"stage_{self.stage}")
