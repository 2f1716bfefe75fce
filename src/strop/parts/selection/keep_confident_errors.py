"""Learn from given answers only where the policy is wrong about them and sure of itself."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, Selected, require


@dataclass(frozen=True)
class KeepConfidentErrors:
    """Tokens that the policy expects, or is unsure about, are not learned and do not count.

        d_t = -logp_old_t - caution * entropy_old_t
        kept are the max(int(share * N), 1) tokens of largest d

    Over the N tokens that still have a gradient: of the step as a selection, of the update on a
    term. The metric `entropy_control/error_threshold` is the smallest d kept, nats.

    Reads: logp_old_T, entropy_old_T [T] float, gradient_T [T] bool.
    Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2508.03178; code Qihoo360/Light-IF (custom_entropy_trainer.py).
    Differs from the source: d is that at the start of the step, equal to the current one at one
    update a step; the share is of the update, the source's of the tokens on one device.
    Nearest part: keep_high_entropy_tokens; keeps everything when share is 1.
    Edges: no token with gradient -> empty masks; ties are broken arbitrarily.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"order_breaks_ties"})
    # Share of the tokens that is kept. Default: released code (command: 0.8; its code 0.2).
    share: float = 0.8
    # How much entropy excuses an error. Default: released code (command: 0.8; its code 1).
    caution: float = 0.8

    def __post_init__(self) -> None:
        require(self, "share", low=0.0, high=1.0)
        require(self, "caution", low=0.0)

    def __call__(self, logp_old_T: Tensor, entropy_old_T: Tensor, gradient_T: Tensor) -> Result:
        row = segments.rows_where(gradient_T)
        error_N = segments.at(-logp_old_T - self.caution * entropy_old_T, row)
        number = min(max(int(self.share * row.shape[0]), 1), row.shape[0])
        kept_N = segments.largest(error_N, number)
        kept_T = torch.zeros_like(gradient_T).index_put((row,), kept_N)
        kept_M = error_N[kept_N]
        least = float(kept_M.min()) if kept_M.numel() else 0.0
        metrics = {"entropy_control/error_threshold": least}
        return Result(Selected(kept_T, kept_T, "expected_token"), metrics=metrics)
