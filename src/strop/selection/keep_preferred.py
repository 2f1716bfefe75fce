"""Learn from the preferred answers only."""

from dataclasses import dataclass

from torch import Tensor

from strop.part import Selected


@dataclass(frozen=True)
class KeepPreferred:
    """Answers that the data reject neither learn nor count.

        token t stays in gradient and denominator if preferred > 0 for its rollout

    Reads: preferred_B [B] int, rollout_T [T] int, mask_T [T] bool.
    Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2405.14734 (released code: the supervised term on chosen answers).
    Differs from the source: no.
    Nearest part: keep_origins, which decides by where a token came from.
    Edges: no preferred answer -> empty masks.
    """

    def __call__(self, preferred_B: Tensor, rollout_T: Tensor, mask_T: Tensor) -> Selected:
        keep_T = mask_T & (preferred_B > 0)[rollout_T]
        return Selected(keep_T, keep_T, "rejected_answer")
