"""Make good tokens likelier and bad ones less likely, without a ratio or a bound."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True)
class FollowAdvantage:
    """The plain policy gradient: a token's weight is its advantage.

        objective_t = A_t * logp_t

    Reads: logp_T [T] float, advantage_T [T] float.   Writes: objective_T [T] float.
    Source: arXiv 2504.02546 (the loss without ratio, clip and reference).
    Differs from the source: no.
    Nearest part: clip_both_sides; equal gradient to it while the ratio is 1.
    Edges: advantage 0 -> objective 0. It is right only for rollouts of the current policy.
    """

    scope: ClassVar[str] = "token"
    facts: ClassVar[frozenset[str]] = frozenset({"silent_at_zero_advantage"})

    def __call__(self, logp_T: Tensor, advantage_T: Tensor) -> Tensor:
        return advantage_T * logp_T
