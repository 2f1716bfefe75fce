"""Do not learn from right programs whose own code hardly runs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch.draws import uniforms
from strop.method.part import Result, Selected, require


@dataclass(frozen=True)
class DropUnprofiledRollouts:
    """Right programs that leave the work to other code are dropped, more often the more they do so.

        keep_i with probability clip((profiled_i - tau) / width, 0, 1) if correct_i and not decoy_i
        all others stay; width 0: keep_i if profiled_i >= tau

    Whether a rollout goes depends on its own uid, the seed and the step, not on the other rows.
    With enough_speedup a rollout of at least that speedup stays anyway.
    Metrics: profile/dropped_fraction (of the correct rollouts), /mean (their profiled share).

    Reads: correct_B, decoy_B [B] bool, profiled_B, speedup_B [B] float, rollout_uid_B [B] int,
    mask_T [T] bool, rollout_T [T] int; rng.   Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2602.05885 (profiling-based rejection); code hkust-nlp/KernelGYM.
    Differs from the source: no; with columns of turns in place of those of rollouts it draws for
    each turn.
    Nearest part: drop_truncated_rollouts.
    Edges: tau -inf -> keeps everything; unknown share (NaN) counts as 0.
    """

    # Share of the running time from which a program may stay. Default: released code (0.3).
    tau: float = 0.3
    # Further share over which the probability rises to 1. Default: released code (0.1).
    width: float = 0.1
    # Speedup from which a program stays anyway; 0: none. Default: ours (the code's option).
    enough_speedup: float = 0.0

    def __post_init__(self) -> None:
        require(self, "tau")
        require(self, "width", "enough_speedup", low=0.0)

    def __call__(
        self,
        correct_B: Tensor,
        profiled_B: Tensor,
        decoy_B: Tensor,
        rollout_uid_B: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        rng: torch.Generator,
        speedup_B: Tensor | None = None,
    ) -> Result:
        profiled_B = profiled_B.nan_to_num()
        above_B = profiled_B.double() - self.tau
        chance_B = (profiled_B >= self.tau).double()  # in its own precision: 0.7 is 0.7
        chance_B = (above_B / self.width).clamp(0, 1) if self.width else chance_B
        judged_B = correct_B.bool() & ~decoy_B.bool()
        draw_B = uniforms(rollout_uid_B, 1, skipped=rng.initial_seed())[:, 0]
        keep_B = ~judged_B | (draw_B < chance_B)
        if self.enough_speedup and speedup_B is not None:
            keep_B |= speedup_B >= self.enough_speedup
        keep_T = mask_T & keep_B[rollout_T]
        count = judged_B.sum().clamp(min=1)
        metrics = {
            "profile/dropped_fraction": float((~keep_B).sum() / count),
            "profile/mean": float(torch.where(judged_B, profiled_B, 0).sum() / count),
        }
        return Result(Selected(keep_T, keep_T, "unprofiled"), metrics=metrics)
