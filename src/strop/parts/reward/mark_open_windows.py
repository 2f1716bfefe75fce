"""Find the stretches of an answer in which the policy was undecided."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import Result, require
from strop.parts.reward import _open_windows as windows


@dataclass(frozen=True)
class MarkOpenWindows:
    """Windows of high mean entropy are counted and marked, for parts that reward or relax by them.

        window of t = the `width` tokens from t on;  open: its mean entropy > tau
        tau = mean over the rollouts of the 95% quantile of their tokens' entropies
        windows_i = open windows,  window_cost_i = sum over these of (mean - tau)

    Metrics: ares/windows_mean, ares/threshold.

    Reads: entropy_behavior_T [T] float, mask_T [T] bool, rollout_T [T] int, scored_B [B] bool,
    num_rollouts int.   Writes: windows_B, window_cost_B [B] float, in_window_T [T] bool.
    Source: arXiv 2510.08457, sec. 3.2.
    Differs from the source: no.
    Nearest part: mark_windows_after_words, which has the released code's windows.
    Edges: a window ends with its rollout; entropies that are void count as 0.
    """

    writes: ClassVar[tuple[str, ...]] = ("windows_B", "window_cost_B", "in_window_T")
    declares: ClassVar[tuple[Column, ...]] = (
        Column("windows_B", "float", "open windows"),
        Column("window_cost_B", "float", "their entropy above the threshold", "nats",
               random="positive"),
        Column("in_window_T", "bool", "inside an open window", random="flag:0.3"),
    )  # fmt: skip
    # Tokens of a window. Default: released code.
    width: int = 4

    def __post_init__(self) -> None:
        require(self, "width", low=1)

    def __call__(
        self,
        entropy_behavior_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        scored_B: Tensor,
        num_rollouts: int,
    ) -> Result:
        row_N = segments.rows_where(mask_T)
        rollout_N = segments.at(rollout_T, row_N)
        entropy_N = segments.at(entropy_behavior_T, row_N).nan_to_num()
        mean_N, whole_N = windows.window_means(entropy_N, rollout_N, self.width)
        top_B = segments.quantile(entropy_N, rollout_N, num_rollouts, 0.95)
        level = segments.overall(top_B, segments.count(rollout_N, num_rollouts) > 0)
        open_N = whole_N & (mean_N > level)
        count_B = segments.count(rollout_N, num_rollouts, open_N).to(entropy_N.dtype)
        cost_B = segments.total(mean_N - level, rollout_N, num_rollouts, open_N)
        inside_T = torch.zeros_like(mask_T)
        inside_T[row_N] = windows.covered(open_N, self.width)
        metrics = {
            "ares/windows_mean": segments.overall(count_B, scored_B),
            "ares/threshold": level,
        }
        return Result((count_B, cost_B, inside_T), metrics=metrics)
