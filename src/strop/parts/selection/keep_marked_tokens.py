"""Learn from the tokens that an earlier part marked."""

from dataclasses import dataclass

from torch import Tensor

from strop.method.part import Selected


@dataclass(frozen=True)
class KeepMarkedTokens:
    """Unmarked tokens, for which the advantage is not meant, neither learn nor count in averages.

        token t stays in gradient and denominator if learning_t

    Reads: learning_T [T] bool, mask_T [T] bool.   Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2505.23564 (the policy's unlikely tokens alone are trained).
    Differs from the source: no.
    Nearest part: keep_origins, which decides by where a token came from.
    Edges: nothing marked -> empty masks.
    """

    def __call__(self, learning_T: Tensor, mask_T: Tensor) -> Selected:
        keep_T = learning_T & mask_T
        return Selected(keep_T, keep_T, "unmarked_token")
