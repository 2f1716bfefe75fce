"""Pay for entropy only while there is too little of it, and more the longer that lasts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from strop.method.part import Result, require
from strop.method.schedule import EntropyTarget, Schedule
from strop.support.errors import UserError


@dataclass(frozen=True)
class HoldEntropyWithCoefficient:
    """An integral controller on the entropy term's coefficient keeps entropy above a floor.

        c <- min(c + delta, c_max) if H <= target else max(c - delta, c_min)
        coefficient of the next step = c if H <= target else 0

    H is the metric `entropy` of the step (mean over its tokens, nats). The first step's
    coefficient is the term's own, which is 0 in the source.

    Reads: metrics (entropy).   Writes: the knob `path`.
    Source: arXiv 2505.22312 (adaptive entropy control); code huggingface/trl
    (grpo_trainer.py, use_adaptive_entropy).
    Differs from the source: no.
    Nearest part: none.
    Edges: the state (c) is in the checkpoint, so a restart loses nothing; a step without the metric
    leaves c as it is.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})  # of the engine: the step's entropy
    # Knob that is set. Default: ours (the name of the term in the recipe).
    path: str = "terms.entropy.coef"
    # c before the first step. Default: released code (TRL's entropy_coef).
    start: float = 0.0
    # The floor, nats; may change over the run. Default: released code (TRL).
    target: EntropyTarget = 0.2
    # Change of c in a step. Default: released code (TRL).
    delta: float = 0.005
    # Smallest and largest c. Default: released code (TRL).
    bounds: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        require(self, "start", "target")
        require(self, "delta", low=0.0)
        if len(self.bounds) != 2 or not self.bounds[0] <= self.bounds[1]:
            raise UserError(
                f"hold_entropy_with_coefficient.bounds must be (smallest, largest), it is "
                f"{self.bounds}"
            )

    @property
    def moves(self) -> tuple[str, ...]:
        """The knob that is set."""
        return (self.path,)

    def init(self) -> dict[str, float]:
        """The coefficient that is carried from step to step."""
        return {"coef": self.start}

    def __call__(self, metrics: Mapping[str, float], state: Mapping[str, float]) -> Result:
        if "entropy" not in metrics:  # a step without rollouts says nothing about entropy
            return Result({}, dict(state))
        assert not isinstance(self.target, Schedule)
        low, high = self.bounds
        scarce = metrics["entropy"] <= self.target
        if scarce:
            coef = min(state["coef"] + self.delta, high)
        else:
            coef = max(state["coef"] - self.delta, low)
        applied = coef if scarce else 0.0
        report = {
            "entropy_control/coef": coef,
            "entropy_control/applied_coef": applied,
            "entropy_control/target": float(self.target),
        }
        return Result({self.path: applied}, {"coef": coef}, report)
