"""Pay for programs that are right, fast, and fast through their own code."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require, require_one_of


@dataclass(frozen=True)
class RewardProfiledSpeed:
    """A right program earns more the faster it is and the more of its time its own code takes.

        reward_i = scale * (correct_i + min(speedup_i, cap) + profiled_i) if correct_i
        decoy, did not run, or not correct -> penalty;   scale 1/2 (code) or 1 (paper)

    With pay_incorrect a program that ran, but is wrong, still earns scale * min(speedup_i, cap).

    Reads: correct_B, decoy_B [B] bool, speedup_B (NaN: did not run), profiled_B [B] float.
    Writes: reward_B [B] float.
    Source: arXiv 2602.05885 (profiling reward); code hkust-nlp/KernelGYM.
    Differs from the source: no; the code's lower bound on speedup is 0 there, none here.
    Nearest part: rescale_reward.
    Edges: unknown profiled share (NaN) -> 0; outcome_B stays as it was.
    """

    # "code" (half of it) or "paper". Default: released code.
    variant: str = "code"
    # Largest speedup that is paid for. Default: paper (3).
    cap: float = 3.0
    # Reward of what failed, is wrong or is a decoy. Default: released code (0).
    penalty: float = 0.0
    # Whether a wrong program that ran is paid for speed. Default: paper (no; the code does).
    pay_incorrect: bool = False

    def __post_init__(self) -> None:
        require_one_of(self, "variant", ("code", "paper"))
        require(self, "cap", low=0.0)
        require(self, "penalty")

    def __call__(
        self, correct_B: Tensor, speedup_B: Tensor, profiled_B: Tensor, decoy_B: Tensor
    ) -> Result:
        scale = 0.5 if self.variant == "code" else 1.0
        runs_B = ~speedup_B.isnan() & ~decoy_B.bool()
        right_B = runs_B & correct_B.bool()
        speed_B = scale * speedup_B.nan_to_num().clamp(max=self.cap)
        penalty_B = torch.full_like(speed_B, self.penalty)
        otherwise_B = torch.where(runs_B, speed_B, penalty_B) if self.pay_incorrect else penalty_B
        metrics = {
            "profile/speedup_mean": segments.overall(speedup_B, right_B),
            "profile/frac_decoy": segments.overall(decoy_B.bool()),
        }
        paid_B = scale * (1 + profiled_B.nan_to_num()) + speed_B
        return Result(torch.where(right_B, paid_B, otherwise_B), metrics=metrics)
