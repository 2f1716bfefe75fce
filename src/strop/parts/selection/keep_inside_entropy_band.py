"""Steer the policy's entropy by which rollouts it learns from."""

from dataclasses import dataclass

from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, Selected, require
from strop.method.schedule import EntropyTarget, Linear, Schedule


@dataclass(frozen=True)
class KeepInsideEntropyBand:
    """Above the band only good rollouts are learned from, below it only bad ones.

        H = mean of entropy_old over the step's policy tokens
        d = +1 if H > h_high, else -1 if H < h_low, else 0
        rollout i stays in gradient and denominator if d * sum_{t in i} advantage_t >= 0

    Good rollouts are likely ones, so learning from them lowers entropy; bad ones raise it. The
    sum has the sign of the rollout's advantage, and is defined for token-level advantages too.
    Metrics: entropy_control/low, /high, /entropy (nats), /direction (d), /kept_fraction.

    Reads: entropy_old_T [T] float, advantage_T [T] float, mask_T [T] bool, rollout_T [T] int,
    num_rollouts int, and scored_B [B] bool if present.
    Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2604.26326, algorithm 1.
    Differs from the source: no (its released code swaps the estimator instead).
    Nearest part: none; keeps everything when the band is (-inf, inf).
    Edges: advantage 0 -> kept; unscored rollouts are in neither H nor the kept rows; no policy
    token -> H 0; nothing left -> empty masks and kept_fraction 0. If the edges cross, the upper one
    counts.
    """

    # Lower edge, nats; may change over the run. Default: paper (hyperparameter table).
    h_low: EntropyTarget = Linear(0.6, 0.4)  # noqa: RUF009 (frozen)
    # Upper edge, nats; may change over the run. Default: paper (hyperparameter table).
    h_high: EntropyTarget = Linear(0.7, 0.5)  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        require(self, "h_low", "h_high")

    def __call__(
        self,
        entropy_old_T: Tensor,
        advantage_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        num_rollouts: int,
        scored_B: Tensor | None = None,
    ) -> Result:
        assert not isinstance(self.h_low, Schedule)
        assert not isinstance(self.h_high, Schedule)
        counting_T = mask_T if scored_B is None else mask_T & scored_B[rollout_T]
        entropy = float(segments.mean(entropy_old_T, rollout_T * 0, 1, counting_T))
        direction = 1 if entropy > self.h_high else -1 if entropy < self.h_low else 0
        sum_B = segments.total(advantage_T, rollout_T, num_rollouts, counting_T)
        keep_B = direction * sum_B >= 0
        keep_T = keep_B[rollout_T] & counting_T
        before = segments.count(rollout_T, num_rollouts, counting_T) > 0
        metrics = {
            "entropy_control/low": float(self.h_low),
            "entropy_control/high": float(self.h_high),
            "entropy_control/entropy": entropy,
            "entropy_control/direction": float(direction),
            "entropy_control/kept_fraction": float(
                (keep_B & before).sum() / before.sum().clamp(min=1)
            ),
        }
        return Result(Selected(keep_T, keep_T, "outside_entropy_band"), metrics=metrics)
