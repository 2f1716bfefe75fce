"""Mark the tokens that the policy found unlikely, for the parts that learn from them alone."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.method.part import require


@dataclass(frozen=True)
class MarkUnlikelyTokens:
    """Only the tokens at which the policy was not sure are meant to learn.

        learning_t = mask_t and probability_t < p0

    Reads: logp_behavior_T [T] float (of the policy that drew it), mask_T [T] bool.
    Writes: learning_T [T] bool.
    Source: arXiv 2505.23564; code only: AIFrameResearch/SPO.
    Differs from the source: a step without such a token learns nothing; there its advantages are
    all 0 as well.
    Nearest part: cut_at_unlikely_tokens.
    Edges: a token whose probability is void (NaN) is not marked.
    """

    writes: ClassVar[tuple[str, ...]] = ("learning_T",)
    # Probability below which a token learns. Default: paper (0.9).
    p0: float = 0.9

    def __post_init__(self) -> None:
        require(self, "p0", low=1e-6, high=1.0)

    def __call__(self, logp_behavior_T: Tensor, mask_T: Tensor) -> Tensor:
        return mask_T & (logp_behavior_T < math.log(self.p0))
