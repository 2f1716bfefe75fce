"""Do not train on answers that were cut off."""

from dataclasses import dataclass

from torch import Tensor

from strop.method.part import Selected


@dataclass(frozen=True)
class DropTruncatedRollouts:
    """An answer without an end is neither praised nor blamed; it still shapes its group's baseline.

        rollout i leaves gradient and denominator if truncated_i

    Reads: truncated_B [B] bool, mask_T [T] bool, rollout_T [T] int.
    Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2503.14476, sec. 3.4 (overlong filtering).
    Differs from the source: no.
    Nearest part: penalise_overlong_softly, which lowers the reward instead.
    Edges: all truncated -> empty masks.
    """

    def __call__(self, truncated_B: Tensor, mask_T: Tensor, rollout_T: Tensor) -> Selected:
        keep_T = ~truncated_B[rollout_T] & mask_T
        return Selected(keep_T, keep_T, "truncated")
