"""Learn from the preferred answers only, or from pairs only."""

from dataclasses import dataclass

from torch import Tensor

from strop.method.part import Selected


@dataclass(frozen=True)
class KeepPreferred:
    """Answers that are not preferred neither learn nor count.

        token t stays in gradient and denominator if preferred > 0 for its rollout
        with rejected: if preferred is not 0

    Reads: preferred_B [B] int, rollout_T [T] int, mask_T [T] bool.
    Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2405.14734 (released code: the supervised term on chosen answers).
    Differs from the source: no.
    Nearest part: keep_origins, which decides by where a token came from.
    Edges: no such answer -> empty masks.
    """

    # Whether rejected answers stay too, so that pairs learn. Default: ours (no).
    rejected: bool = False

    def __call__(self, preferred_B: Tensor, rollout_T: Tensor, mask_T: Tensor) -> Selected:
        keep_B = preferred_B != 0 if self.rejected else preferred_B > 0
        keep_T = mask_T & keep_B[rollout_T]
        return Selected(keep_T, keep_T, "rejected_answer")
