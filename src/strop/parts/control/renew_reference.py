"""Take the policy of now as the reference of the steps that follow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from strop.method.part import Result, require


@dataclass(frozen=True)
class RenewReference:
    """From a step on, the policy is held near what it had become by then, not near its start.

        after step `after`, and every `every` steps after that: reference <- the policy's weights

    Reads: state.   Writes: the knob model.reference, the step whose weights it has (0: the start).
    Source: arXiv 2507.06892 (the base is replaced once, where the mixed phase ends).
    Differs from the source: no.
    Nearest part: carry_metric_forward.
    Edges: the renewed reference is in the checkpoint; with adapters it is a model of its own.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"renews_reference"})
    moves: ClassVar[tuple[str, ...]] = ("model.reference",)
    # The step at whose end the reference is first replaced. Default: paper (50, over GRPO).
    after: int = 50
    # Steps between two later replacements; 0: there are none. Default: paper (once).
    every: int = 0

    def __post_init__(self) -> None:
        require(self, "after", low=1)
        require(self, "every", low=0)

    def init(self) -> dict[str, int]:
        """No step done, the reference is the run's start."""
        return {"steps": 0, "made_at": 0}

    def __call__(self, state: Mapping[str, int]) -> Result:
        step = state["steps"] + 1
        beyond = step - self.after
        due = beyond == 0 or (beyond > 0 and self.every > 0 and beyond % self.every == 0)
        made_at = step if due else state["made_at"]
        return Result({"model.reference": float(made_at)}, {"steps": step, "made_at": made_at})
