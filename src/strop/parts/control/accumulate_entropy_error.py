"""Add up how far entropy has been from its target, and pass the sum to the next step."""

from collections.abc import Mapping
from dataclasses import dataclass

from strop.method.part import Result, require


@dataclass(frozen=True)
class AccumulateEntropyError:
    """The integral half of a controller: the errors of entropy add up over steps.

        integral <- integral + gain * e;   the knob is the integral, from the next step on

    e is the metric entropy_control/error of the step (entropy minus target, nats).

    Reads: metrics (entropy_control/error), state.   Writes: the knob `path`.
    Source: code only: lblaoke/entrocraft:verl/trainer/ppo/core_algos.py (entropic); the method is
    that of arXiv 2511.15248.
    Differs from the source: no.
    Nearest part: hold_entropy_with_coefficient, whose sum moves by steps of one size.
    Edges: the state (integral) is in the checkpoint, so a restart loses nothing; a step without
    the metric leaves it as it is.
    """

    # Knob that is set. Default: ours (the part in the recipe).
    path: str = "advantage.weigh_signs_by_entropy_error.integral"
    # Weight of a step's error, per nat. Default: released code.
    gain: float = 0.01
    # The integral before the first step. Default: released code.
    start: float = 0.0

    def __post_init__(self) -> None:
        require(self, "gain")
        require(self, "start")

    @property
    def moves(self) -> tuple[str, ...]:
        """The knob that is set."""
        return (self.path,)

    def init(self) -> dict[str, float]:
        """The integral that is carried from step to step."""
        return {"integral": self.start}

    def __call__(self, metrics: Mapping[str, float], state: Mapping[str, float]) -> Result:
        if "entropy_control/error" not in metrics:
            return Result({}, dict(state))
        integral = state["integral"] + self.gain * metrics["entropy_control/error"]
        report = {"entropy_control/integral": integral}
        return Result({self.path: integral}, {"integral": integral}, report)
