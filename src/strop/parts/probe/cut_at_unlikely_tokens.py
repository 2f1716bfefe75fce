"""Start a new segment of an answer at tokens that the policy found unlikely."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import require


@dataclass(frozen=True)
class CutAtUnlikelyTokens:
    """An answer is cut where the policy was not sure how to continue.

        cut_t = 1 for the 1st, (interval + 1)-th, (2 interval + 1)-th, ... token of its rollout
                with probability < p0;   interval 1: every such token

    Reads: logp_behavior_T [T] float, mask_T [T] bool, rollout_T [T] int, num_rollouts int.
    Writes: cut_T [T] bool.
    Source: arXiv 2505.23564; code only: AIFrameResearch/SPO.
    Differs from the source: no; a cut is at the unlikely token, and its prefix ends before it.
    Nearest part: mark_step_ends, which cuts by the text.
    Edges: a token whose probability is void (NaN) does not count; no unlikely token -> no cut.
    """

    writes: ClassVar[tuple[str, ...]] = ("cut_T",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column("cut_T", "bool", "a segment of the answer begins here", random="flag:0.5"),
    )
    # Probability below which a token is unlikely. Default: paper (0.9).
    p0: float = 0.9
    # Unlikely tokens per cut. Default: paper (5).
    interval: int = 5

    def __post_init__(self) -> None:
        require(self, "p0", low=1e-6, high=1.0)
        require(self, "interval", low=1)

    def __call__(
        self, logp_behavior_T: Tensor, mask_T: Tensor, rollout_T: Tensor, num_rollouts: int
    ) -> Tensor:
        cut_T = mask_T & (logp_behavior_T < math.log(self.p0))
        rollout_N = rollout_T[cut_T]
        kept_N = segments.place_in_run(rollout_N, num_rollouts) % self.interval == 0
        return cut_T.masked_scatter(cut_T, kept_N)
