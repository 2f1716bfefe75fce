"""Let every token of the update weigh the same."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AverageOverTokens:
    """Long answers weigh more than short ones, in proportion to their tokens (token-mean).

        share_t = denominator_t / sum_s denominator_s

    Reads: denominator_T [T] bool.   Writes: share_T [T] float.
    Source: arXiv 2503.14476, eq. 12.
    Differs from the source: no; the count is that of the whole update, never of a micro-batch.
    Nearest part: average_per_sequence; equal to it when all sequences are equally long.
    Edges: no token -> all shares 0.
    """

    def __call__(self, denominator_T: Tensor) -> Tensor:
        return denominator_T.double() / denominator_T.sum().clamp(min=1)
