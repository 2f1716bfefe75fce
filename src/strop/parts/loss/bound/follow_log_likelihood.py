"""Make every token likelier, as in supervised fine-tuning."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True)
class FollowLogLikelihood:
    """Tokens are imitated, whatever they earned: every token's weight is 1.

        objective_t = logp_t

    Reads: logp_T [T] float.   Writes: objective_T [T] float.
    Source: arXiv 2509.04419 (the supervised row of its table).
    Differs from the source: no.
    Nearest part: follow_advantage; equal to it when every advantage is 1.
    Edges: masked tokens ignored.
    """

    scope: ClassVar[str] = "token"

    def __call__(self, logp_T: Tensor) -> Tensor:
        return logp_T
