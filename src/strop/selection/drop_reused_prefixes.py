"""Learn from the tokens that a rollout drew itself, not from those it took over."""

from dataclasses import dataclass

from torch import Tensor

from strop import segments
from strop.part import Selected


@dataclass(frozen=True)
class DropReusedPrefixes:
    """What a rollout took over from another one is its prompt: the other alone learns it.

        the first fork_at tokens of an answer neither learn nor count in averages

    Reads: fork_at_B [B] int, rollout_T [T] int, mask_T [T] bool.
    Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2508.11016 (code: a branch's prompt has the reused tokens).
    Differs from the source: no.
    Nearest part: keep_origins, which decides by who wrote a token.
    Edges: no fork -> everything stays; the other one was left out of the batch -> nobody learns it.
    """

    def __call__(self, fork_at_B: Tensor, rollout_T: Tensor, mask_T: Tensor) -> Selected:
        row = mask_T.nonzero().squeeze(1)
        place_N = segments.order_within(rollout_T[row], fork_at_B.shape[0])
        keep_T = mask_T.clone()
        keep_T[row] = place_N >= fork_at_B[rollout_T[row]]
        return Selected(keep_T, keep_T, "reused_prefix")
