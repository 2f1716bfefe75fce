"""Add the tokens' losses without dividing."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SumOverTokens:
    """The step grows with the number of tokens in the update (token-sum).

        share_t = denominator_t

    Reads: denominator_T [T] bool.   Writes: share_T [T] float.
    Source: code only: verl-project/verl:verl/trainer/ppo/core_algos.py (agg_loss).
    Differs from the source: no.
    Nearest part: average_over_tokens; equal to it times the number of counting tokens.
    Edges: no token -> all shares 0.
    """

    def __call__(self, denominator_T: Tensor) -> Tensor:
        return denominator_T.double()
