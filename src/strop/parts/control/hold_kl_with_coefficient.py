"""Raise the price of leaving the reference while the policy is too far from it, else lower it."""

from collections.abc import Mapping
from dataclasses import dataclass

from strop.method.part import Result, require

MOST_RATE = 4.99  # from 5 on a step of error -0.2 would make c 0 or negative, for ever


@dataclass(frozen=True)
class HoldKlWithCoefficient:
    """A proportional controller on the price of divergence keeps the divergence near a target.

        c <- c * (1 + rate * clip(KL / target - 1, -0.2, 0.2)), from the next step on

    KL is the metric `price/kl` of the step, nats per rollout.

    Reads: metrics (price/kl), the knob `path`, which is c.   Writes: the knob `path`.
    Source: arXiv 1909.08593, sec. 2.2; code huggingface/trl (AdaptiveKLController).
    Differs from the source: rate is its n_steps / horizon, the rollouts of a step divided by a
    constant.
    Nearest part: hold_kl_by_difficulty, which holds a penalty's weights.
    Edges: the knob is in the checkpoint, so a restart loses nothing; a step without the metric
    leaves c as it is.
    """

    # The target KL, nats per rollout. Default: released code (TRL).
    target: float = 6.0
    # How far a step moves c for a given error. Default: released code (CORY: 256 rollouts a step,
    # horizon 10000).
    rate: float = 0.0256
    # Knob that is set. Default: ours (the part in the recipe cory).
    path: str = "advantage.charge_kl_to_reference.coef"

    def __post_init__(self) -> None:
        require(self, "target", low=1e-9)
        require(self, "rate", low=0.0, high=MOST_RATE)

    @property
    def moves(self) -> tuple[str, ...]:
        """The knob that is set."""
        return (self.path,)

    def __call__(self, metrics: Mapping[str, float], knobs: Mapping[str, float]) -> Result:
        if "price/kl" not in metrics:
            return Result({})
        error = min(max(metrics["price/kl"] / self.target - 1, -0.2), 0.2)
        return Result({self.path: knobs[self.path] * (1 + self.rate * error)})
