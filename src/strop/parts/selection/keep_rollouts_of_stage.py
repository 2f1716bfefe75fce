"""Let only the rollouts of one phase of the strategy learn."""

from dataclasses import dataclass

from torch import Tensor

from strop.method.part import Selected, require


@dataclass(frozen=True)
class KeepRolloutsOfStage:
    """Rollouts of the strategy's other phases neither learn nor count in this selection.

        token t stays in gradient and denominator if the stage of its rollout is `stage`

    Reads: stage_B [B] int, rollout_T [T] int, mask_T [T] bool.
    Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2409.12917, eq. 3 and 4 (a weight of its own for each attempt).
    Differs from the source: no.
    Nearest part: drop_rollouts_of_stage, which takes them out of the batch and its statistics.
    Edges: nothing of that stage -> empty masks.
    """

    # Phase of the strategy whose rollouts stay. Default: ours (the first one's).
    stage: int = 0

    def __post_init__(self) -> None:
        require(self, "stage", low=0)

    def __call__(self, stage_B: Tensor, rollout_T: Tensor, mask_T: Tensor) -> Selected:
        keep_T = mask_T & (stage_B == self.stage)[rollout_T]
        return Selected(keep_T, keep_T, "other_stage")
