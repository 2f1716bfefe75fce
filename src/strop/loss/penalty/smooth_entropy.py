"""Keep the next-token choice as open as it has been so far."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.errors import UserError
from strop.part import Result, require
from strop.schedule import Schedule


@dataclass(frozen=True)
class SmoothEntropy:
    """The policy is paid for entropy and pays for tokens that leave the corridor of its past.

        objective_t = entropy_t - smooth * alpha * P_t
        P_t = relu(corridor[0] * past - entropy_t) + relu(entropy_t - corridor[1] * past)

    past is the mean entropy of the steps so far, as carry_metric_forward sets it.

    Reads: entropy_T [T] float.   Writes: objective_T [T] float (nats).
    Source: arXiv 2509.22576, eq. 2 to 5.
    Differs from the source: no (its released code's penalty is a constant, without gradient).
    Nearest part: reward_entropy; equal to it at alpha 0.
    Edges: no past yet (below 0) -> P = 0; at a corridor's edge its gradient is 0.
    """

    scope: ClassVar[str] = "token"
    # Mean entropy of the steps so far, nats; below 0: none yet. Default: ours.
    past: float | Schedule = 0.5
    # The corridor as factors of the past. Default: paper (its remark recommends 0.5 and 1.5).
    corridor: tuple[float, float] = (0.0, 2.0)
    # Weight of the penalty. Default: paper (ScienceWorld; 0.1 on ALFWorld).
    alpha: float = 0.05
    # Further weight, which may change over the run. Default: ours (constant).
    smooth: float | Schedule = 1.0

    def __post_init__(self) -> None:
        require(self, "past")
        require(self, "alpha", low=0.0)
        require(self, "smooth", low=0.0)
        if len(self.corridor) != 2 or not 0 <= self.corridor[0] <= self.corridor[1]:
            raise UserError(
                f"smooth_entropy.corridor must be (lower, upper) factors: {self.corridor}"
            )

    def __call__(self, entropy_T: Tensor) -> Result:
        assert not isinstance(self.past, Schedule)
        assert not isinstance(self.smooth, Schedule)
        if self.past < 0:
            return Result(entropy_T, metrics={"epo/outside_mean": entropy_T.detach() * 0})
        low, high = (factor * self.past for factor in self.corridor)
        excess_T = (low - entropy_T).relu() + (entropy_T - high).relu()
        metrics = {"epo/outside_mean": (excess_T > 0).to(entropy_T.dtype)}
        return Result(entropy_T - self.smooth * self.alpha * excess_T, metrics=metrics)
