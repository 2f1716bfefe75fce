"""Add up how far entropy has been from its target, and pass the sum to the next step."""

from collections.abc import Mapping
from dataclasses import dataclass

from strop.method.part import Result, require


@dataclass(frozen=True)
class AccumulateEntropyError:
    """The integral half of a controller: the errors of entropy add up over steps.

        integral <- integral + gain * e;   the knob is the integral, from the next step on

    e is the metric entropy_control/error of the step (entropy minus target, nats).

    Reads: metrics (entropy_control/error), the knob `path`, which is the integral.
    Writes: the knob `path`.
    Source: code only: lblaoke/entrocraft:verl/trainer/ppo/core_algos.py (entropic); the method is
    that of arXiv 2511.15248.
    Differs from the source: no.
    Nearest part: hold_entropy_with_coefficient, whose sum moves by steps of one size.
    Edges: the knob is in the checkpoint, so a restart loses nothing; a step without the metric
    leaves it as it is.
    """

    # Knob that is set. Default: ours (the part in the recipe).
    path: str = "advantage.weigh_signs_by_entropy_error.integral"
    # Weight of a step's error, per nat. Default: released code.
    gain: float = 0.01

    def __post_init__(self) -> None:
        require(self, "gain")

    @property
    def moves(self) -> tuple[str, ...]:
        """The knob that is set."""
        return (self.path,)

    def __call__(self, metrics: Mapping[str, float], knobs: Mapping[str, float]) -> Result:
        if "entropy_control/error" not in metrics:
            return Result({})
        integral = knobs[self.path] + self.gain * metrics["entropy_control/error"]
        return Result({self.path: integral}, metrics={"entropy_control/integral": integral})
