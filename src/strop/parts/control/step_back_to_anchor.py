"""Every few steps, go back part of the way that the weights have moved."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from strop.method.part import Result, knobs_of_copy, require


@dataclass(frozen=True)
class StepBackToAnchor:
    """Moves on which successive batches agree count more than those of a single batch.

        a: the weights at the start; after every `every`-th step, before the engine samples again:
        a <- a + eps (theta - a);   theta <- a

    The weights are those that the optimiser updates (float32 under half precision; with adapters
    only these), and its moments stay. With constant gradients this is a learning rate times eps and
    nothing else, so `training.lr` times eps without this part is its control.

    Reads: state.   Writes: the knobs model.anchor, the step at which the anchor moved last (0: it
    is the start), and model.anchor_share, eps.
    Source: arXiv 2508.01908; code chandar-lab/continual-pretraining (Reptile over replay).
    Differs from the source: `every` counts steps, not optimiser updates, so that no rollout is
    drawn under weights that are then discarded; the masters are moved, there the module's weights.
    Nearest part: renew_reference, which leaves the policy alone; eps 1 is training as usual.
    Edges: eps 0 -> the weights stay; in a later phase the anchor is where it was; the anchor, one
    more copy of the trained weights, is in main memory and in the checkpoint.
    """

    moves: ClassVar[tuple[str, ...]] = knobs_of_copy("anchor")
    # Steps between two moves of the anchor. Default: ours (released code: 500 updates).
    every: int = 10
    # Share of the way from the anchor that stays. Default: ours (released code: 0.01).
    eps: float = 0.5

    def __post_init__(self) -> None:
        require(self, "every", low=1)
        require(self, "eps", low=0.0, high=1.0)

    def init(self) -> dict[str, int]:
        """No step done."""
        return {"steps": 0}

    def __call__(self, state: Mapping[str, int]) -> Result:
        steps = state["steps"] + 1
        moved = (float(steps - steps % self.every), self.eps)
        return Result(dict(zip(self.moves, moved, strict=True)), {"steps": steps})
