"""Give every policy token of a rollout the rollout's advantage."""

from dataclasses import dataclass

from torch import Tensor

from strop.batch import segments


@dataclass(frozen=True)
class SpreadEvenly:
    """The outcome is credited to all tokens of the rollout alike.

        advantage_t = advantage_{rollout of t} * mask_t

    Reads: advantage_B [B] float, size_B [B] int, mask_T [T] bool.
    Writes: advantage_T [T] float.
    Source: arXiv 2402.03300, sec. 4.1.2 (outcome supervision).
    Differs from the source: no.
    Nearest part: none.
    Edges: masked tokens get 0.
    """

    def __call__(self, advantage_B: Tensor, size_B: Tensor, mask_T: Tensor) -> Tensor:
        return segments.spread(advantage_B, size_B, mask_T)
