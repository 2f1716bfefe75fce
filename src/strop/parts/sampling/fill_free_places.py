"""Start as many prompts as have ended, so that the number under way stays constant."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.method.part import Draw, Result


@dataclass(frozen=True)
class FillFreePlaces:
    """Prompts with unfinished answers keep their places; new ones take those that are free.

        draws <- the first (number of draws - prompts that are pending) of the draws

    Metrics: pool/new_prompts.

    Reads: draws, num_wanted; observes pending_B [B] bool, group_B [B] int.   Writes: draws.
    Source: arXiv 2506.15050 (a pool of constant size).
    Differs from the source: a place holds a prompt with all its rollouts, there one answer.
    Nearest part: draw_spare_prompts, for a strategy from which a fixed number of prompts leaves.
    Edges: nothing pending -> the draws; a prompt that finds no place is skipped until the sampler
    before it draws it again; all prompts that a curation requests are drawn; the number of places
    taken is in the checkpoint.
    """

    writes: ClassVar[tuple[str, ...]] = ()

    def init(self) -> dict[str, int]:
        """All places are free."""
        return {"taken": 0}

    def __call__(
        self, draws: tuple[Draw, ...], state: dict[str, int], num_wanted: int | None = None
    ) -> Result:
        free = len(draws) - state["taken"] if num_wanted is None else len(draws)
        return Result(draws[: max(free, 0)], state, {"pool/new_prompts": float(max(free, 0))})

    def observe(self, pending_B: Tensor, group_B: Tensor, state: dict[str, int]) -> dict[str, int]:
        """Counts the places of prompts that continue."""
        return {"taken": len(set(group_B[pending_B].tolist()))}
