"""Learn only where the policy was undecided."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, Selected, require, require_one_of
from strop.method.schedule import Schedule
from strop.support.errors import UserError


@dataclass(frozen=True)
class KeepHighEntropyTokens:
    """The tokens of highest next-token entropy keep their gradient, the others lose it.

        quantile: kept if entropy_old_t >= the (1 - share)-quantile (linear between neighbours)
        topk: kept are the max(int(share * N), 1) tokens of highest entropy
        by_advantage: |advantage_t| * entropy_old_t takes the place of the entropy
        others: those that would lose their gradient keep it, the others lose it

    Over the N tokens that still have a gradient: of the step as a selection, of the update on a
    term. `normaliser` says whether averages count the kept tokens only or all ("full").
    The metric `entropy_control/threshold` is the smallest entropy kept, nats.

    Reads: entropy_old_T [T] float, gradient_T [T] bool, denominator_T [T] bool; advantage_T [T]
    float if by_advantage.
    Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2506.01939, eq. 6; "full" code only: huggingface/trl grpo_trainer.py; "topk"
    code only: CarlanLark/Lp-Reg-dev; by_advantage arXiv 2509.22115.
    Differs from the source: entropy is that at the start of the step, the released codes' that of
    the current forward pass (equal at one update a step); never of a micro-batch.
    Nearest part: none; keeps everything when share is 1 (nothing with others).
    Edges: no token with gradient -> empty masks; topk breaks ties arbitrarily.
    """

    # Share of the tokens that is kept; may change over the run. Default: paper (0.2).
    share: float | Schedule = 0.2
    # "quantile" or "topk". Default: paper (a threshold).
    method: str = "quantile"
    # Averages are over the "kept" tokens or over all, "full". Default: paper (eq. 6).
    normaliser: str = "kept"
    # Whether tokens of small advantage go first too. Default: paper (they do not).
    by_advantage: bool = False
    # Whether the rest is kept instead, to see what it teaches. Default: ours (its control).
    others: bool = False

    def __post_init__(self) -> None:
        require(self, "share", low=0.0, high=1.0)
        require_one_of(self, "method", ("quantile", "topk"))
        require_one_of(self, "normaliser", ("kept", "full"))

    def __call__(
        self,
        entropy_old_T: Tensor,
        gradient_T: Tensor,
        denominator_T: Tensor,
        advantage_T: Tensor | None = None,
    ) -> Result:
        assert not isinstance(self.share, Schedule), "schedules become numbers before a step"
        row = segments.rows_where(gradient_T)
        size_T = entropy_old_T
        if self.by_advantage:
            if advantage_T is None:
                raise UserError("keep_high_entropy_tokens.by_advantage needs advantage_T")
            size_T = entropy_old_T * advantage_T.abs()
        size_N, num = segments.at(size_T, row), row.shape[0]
        if self.method == "topk" or not num:
            kept_N = segments.largest(size_N, min(max(int(self.share * num), 1), num))
        else:
            kept_N = size_N >= self._threshold(size_N)
        kept_T = torch.zeros_like(gradient_T).index_put((row,), kept_N)
        kept_M = segments.at(entropy_old_T, row)[kept_N]
        least = float(kept_M.min()) if kept_M.numel() else 0.0
        if self.others:
            kept_T = gradient_T & ~kept_T
        counts_T = kept_T if self.normaliser == "kept" else denominator_T
        lost = "high_entropy_token" if self.others else "low_entropy_token"
        metrics = {"entropy_control/threshold": least}
        return Result(Selected(kept_T, counts_T, lost), metrics=metrics)

    def _threshold(self, size_N: Tensor) -> Tensor:
        """The (1 - share)-quantile [] of the values, at least one."""
        assert not isinstance(self.share, Schedule)
        last = size_N.shape[0] - 1
        place = round(self.share * last, 9)  # from the largest one
        above = int(place)
        below = min(above + 1, last)
        high, low = segments.at_places(size_N, (last - above, last - below))
        return torch.lerp(high, low, place - above)
