"""Take smaller steps while few of the rollouts carry most of the importance weight."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.charts import Curve, LineChart
from strop.method.part import Result, require, require_one_of


@dataclass(frozen=True)
class ShrinkStepBySampleSize:
    """The learning rate of an update falls with the effective sample size of its rollouts.

        ess = (sum_i w_i)^2 / (sum_i w_i^2 + 1e-8), w over the largest of them
        lr_scale = sqrt(s) or s, s = min(1, ess / B / base), over the B scored rollouts

    Metrics: ess/ratio (ess / B), ess/lr_scale.

    Reads: sequence_is_weight_B [B] float, scored_B [B] bool.   Writes: lr_scale.
    Source: arXiv 2602.17616; code mit-han-lab/vcpo (staleness_utils, ess_scaling).
    Differs from the source: weights are divided by the largest; there an update whose weights are
    all small hardly moves.
    Nearest part: none.
    Edges: equal weights -> 1, all 0 -> 0; no scored rollout -> 1.
    """

    charts: ClassVar[tuple[LineChart, ...]] = (
        LineChart(
            "Effective sample",
            "Share of the sample that counts under its importance weights; 1: no mismatch.",
            (Curve("ess/ratio", "of rollouts"),),
            section="Stability",
            percent=True,
        ),
    )
    # Share of the rollouts from which the full step is taken. Default: released code (1; 0.55 for
    # tool use over several turns).
    base: float = 1.0
    # "sqrt" (for Adam) or "linear". Default: released code.
    rule: str = "sqrt"

    def __post_init__(self) -> None:
        require(self, "base", low=1e-6)
        require_one_of(self, "rule", ("sqrt", "linear"))

    def __call__(self, sequence_is_weight_B: Tensor, scored_B: Tensor) -> Result:
        key_B = torch.zeros_like(scored_B, dtype=torch.int64)
        weight_B = sequence_is_weight_B.double()
        weight_B = segments.divided(weight_B, segments.extreme(weight_B, key_B, 1, scored_B)[key_B])
        total = float(segments.total(weight_B, key_B, 1, scored_B)[0])
        squares = float(segments.total(weight_B.square(), key_B, 1, scored_B)[0])
        count = int(scored_B.sum())
        ratio = total**2 / (squares + 1e-8) / count if count else 1.0
        size = min(1.0, ratio / self.base)
        scale = size**0.5 if self.rule == "sqrt" else size
        return Result(scale, metrics={"ess/ratio": ratio, "ess/lr_scale": scale})
