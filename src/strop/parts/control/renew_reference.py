"""Take the current policy, or an average of policies, as the reference of the steps that follow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from strop.method.part import Result, knobs_of_copy, require

MOST_DECAY = 0.999999  # nearer to 1 the reference would never move


@dataclass(frozen=True)
class RenewReference:
    """From a given step on, the policy is held near its state at that step, not near its start.

        after step `after`, and every `every` steps after that:
        W <- decay W + 1 (W is 1 at first);   reference <- reference + (policy - reference) / W

    With decay 0 the reference becomes the policy. Else it is the average of the start and of the
    policies at these steps, of which each counts `decay` times as much as the next: TRL's
    ref_model_mixup_alpha is 1 - decay, except in the first steps.

    Reads: state.   Writes: the knobs model.reference, the step at which it was renewed last (0: it
    is the start), and model.reference_share, the policy's share in that: 1 / W.
    Source: arXiv 2507.06892 (the base is replaced once, where the mixed phase ends); arXiv
    2110.00641, code openai/ppo-ewma (decay; there after every update).
    Differs from the source: no.
    Nearest part: carry_metric_forward.
    Edges: the renewed reference is in the checkpoint; with adapters it is a model of its own.
    """

    moves: ClassVar[tuple[str, ...]] = knobs_of_copy("reference")
    # The step at whose end the reference is first replaced. Default: paper (50, over GRPO).
    after: int = 50
    # Steps between two later replacements; 0: there are none. Default: paper (once).
    every: int = 0
    # Weight of an older policy relative to the next one in the average. Default: paper (none).
    decay: float = 0.0

    def __post_init__(self) -> None:
        require(self, "after", low=1)
        require(self, "every", low=0)
        require(self, "decay", low=0.0, high=MOST_DECAY)

    def init(self) -> dict[str, float]:
        """The initial state: no step is done, and the reference is the run's start."""
        return {"steps": 0, "made_at": 0, "weight": 1.0}

    def __call__(self, state: Mapping[str, float]) -> Result:
        step = state["steps"] + 1
        beyond = step - self.after
        due = beyond == 0 or (beyond > 0 and self.every > 0 and beyond % self.every == 0)
        made_at = step if due else state["made_at"]
        before = state.get("weight", 1.0)
        weight = self.decay * before + 1 if due else before
        moved = (float(made_at), 1 / weight)
        return Result(
            dict(zip(self.moves, moved, strict=True)),
            {"steps": step, "made_at": made_at, "weight": weight},
        )
