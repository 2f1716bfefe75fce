"""Compare the current policy with the one before the update, one turn at a time."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop import segments
from strop.part import require


@dataclass(frozen=True)
class RatioPerTurn:
    """All tokens of a turn share one ratio, the geometric mean of theirs.

        log_ratio_t = min(mean_{s in turn of t, mask_s} (logp_s - logp_old_s), max_nats)

    With product the sum takes the place of the mean: the ratio of the unit's whole probability.

    Reads: logp_T [T] float, logp_old_T [T] float, mask_T [T] bool, turn_T [T] int, num_turns int.
    Writes: log_ratio_T [T] float (nats).
    Source: arXiv 2507.18071, eq. 7, taken over a turn in place of a response (ours).
    Differs from the source: the unit is the turn; bounded above at max_nats against overflow.
    Nearest part: ratio_per_sequence; equal to it when every rollout has one turn.
    Edges: a turn without policy tokens -> 0; a void logp_old (NaN) -> its token's ratio is 1;
    beyond max_nats the gradient is 0.
    """

    scope: ClassVar[str] = "rollout"
    # Largest log-ratio, nats. Default: released code (verl, for whole responses).
    max_nats: float = 10.0
    # Whether token ratios are multiplied, without a root. Default: paper (no).
    product: bool = False

    def __post_init__(self) -> None:
        require(self, "max_nats", low=0.0)

    def __call__(
        self, logp_T: Tensor, logp_old_T: Tensor, mask_T: Tensor, turn_T: Tensor, num_turns: int
    ) -> Tensor:
        old_T = torch.where(logp_old_T.isnan(), logp_T, logp_old_T).detach()
        combine = segments.total if self.product else segments.mean
        ratio_K = combine(logp_T - old_T, turn_T, num_turns, mask_T)
        return ratio_K.clamp(max=self.max_nats)[turn_T]
