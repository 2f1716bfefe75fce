"""Of tokens that several rollouts share, mark one copy, and only where something is to learn."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop import segments


@dataclass(frozen=True)
class MarkEachEdgeOnce:
    """A shared beginning is learnt once, by the rollout that it was drawn for.

        learning_t <- learning_t and (policy tokens before t >= fork_at_i) and advantage_t != 0

    Reads: learning_T [T] bool, advantage_T [T] float, mask_T [T] bool, rollout_T [T] int,
    fork_at_B [B] int.
    Writes: learning_T [T] bool.
    Source: arXiv 2505.23564 (the edges of a tree are the samples; those of advantage 0 are left
    out); code only: AIFrameResearch/SPO.
    Differs from the source: no.
    Nearest part: mark_unlikely_tokens.
    Edges: a rollout whose parent left the batch still leaves out what they shared.
    """

    writes: ClassVar[tuple[str, ...]] = ("learning_T",)

    def __call__(
        self,
        learning_T: Tensor,
        advantage_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        fork_at_B: Tensor,
    ) -> Tensor:
        before_T = mask_T.long().cumsum(0) - mask_T.long()
        first_B = segments.extreme(before_T, rollout_T, fork_at_B.shape[0], largest=False)
        own_T = before_T - first_B[rollout_T] >= fork_at_B[rollout_T]
        return learning_T & own_T & (advantage_T != 0)
