"""Raise the price of leaving the reference while the policy is too far from it, else lower it."""

from collections.abc import Mapping
from dataclasses import dataclass

from strop.method.part import Result, require


@dataclass(frozen=True)
class HoldKlWithCoefficient:
    """A proportional controller on the price of divergence keeps the divergence near a target.

        c <- c * (1 + rate * clip(KL / target - 1, -0.2, 0.2)), from the next step on

    KL is the metric `price/kl` of the step, nats per rollout.

    Reads: metrics (price/kl), state.   Writes: the knob `path`.
    Source: arXiv 1909.08593, sec. 2.2; code huggingface/trl (AdaptiveKLController).
    Differs from the source: rate is its n_steps / horizon, the rollouts of a step divided by a
    constant.
    Nearest part: hold_kl_by_difficulty, which holds a penalty's weights.
    Edges: the state (c) is in the checkpoint, so a restart loses nothing; a step without the metric
    leaves c as it is.
    """

    # c before the first step. Default: released code (TRL).
    start: float = 0.2
    # The target KL, nats per rollout. Default: released code (TRL).
    target: float = 6.0
    # How far a step moves c for a given error. Default: released code (CORY: 256 rollouts a step,
    # horizon 10000).
    rate: float = 0.0256
    # Knob that is set. Default: ours (the part in the recipe cory).
    path: str = "advantage.charge_kl_to_reference.coef"

    def __post_init__(self) -> None:
        require(self, "start", low=0.0)
        require(self, "target", low=1e-9)
        require(self, "rate", low=0.0)

    @property
    def moves(self) -> tuple[str, ...]:
        """The knob that is set."""
        return (self.path,)

    def init(self) -> dict[str, float]:
        """The coefficient that is carried from step to step."""
        return {"coef": self.start}

    def __call__(self, metrics: Mapping[str, float], state: Mapping[str, float]) -> Result:
        coef = state["coef"]
        if "price/kl" in metrics:
            error = min(max(metrics["price/kl"] / self.target - 1, -0.2), 0.2)
            coef *= 1 + self.rate * error
        return Result({self.path: coef}, {"coef": coef})
