"""Keep an average of the policies so far, with which a rollout part may explore."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from strop.method.part import Result, knobs_of_copy, require
from strop.parts.control.renew_reference import MOST_DECAY


@dataclass(frozen=True)
class AverageExplorer:
    """A slow average of the policy explores; the rollouts to train on come from the newest one.

        after every step: explorer <- decay explorer + (1 - decay) policy, from the initial one

    Reads: state.   Writes: the knobs model.explorer, the finished step, and model.explorer_share, 1
    - decay.
    Source: arXiv 2604.06916; code NVlabs/Sana (sol_rl: the weights of the rollouts).
    Differs from the source: the average only explores, there it is also quantised for that.
    Nearest part: renew_reference(after=1, every=1, decay), whose start counts as one policy.
    Edges: decay 0 -> the newest policy explores; the average, one more copy of the trained weights,
    is in main memory and in the checkpoint.
    """

    moves: ClassVar[tuple[str, ...]] = knobs_of_copy("explorer")
    # Weight of the old average in a step. Default: ours (the paper's was not read).
    decay: float = 0.9

    def __post_init__(self) -> None:
        require(self, "decay", low=0.0, high=MOST_DECAY)

    def init(self) -> dict[str, int]:
        """No step done."""
        return {"steps": 0}

    def __call__(self, state: Mapping[str, int]) -> Result:
        steps = state["steps"] + 1
        moved = (float(steps), 1 - self.decay)
        return Result(dict(zip(self.moves, moved, strict=True)), {"steps": steps})
