"""Start a run with more prompts than a step trains on, so that no step waits for slow ones."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from strop.batch.columns import Column
from strop.method.part import Draw, Result, require


@dataclass(frozen=True)
class DrawSparePrompts:
    """More prompts are under way than a step takes; the rollout part chooses which it takes.

        first step: draws <- the N draws and share N others of the pool, at random, spare_B 1
        later: the draws unchanged; what the first step left over is still under way, until the
            rollout part drops it

    Reads: draws, pool, num_wanted; rng.   Writes: draws, spare_B [B] float.
    Source: arXiv 2509.18521 (chunk larger than target); code RLsys-Foundation/APRIL.
    Differs from the source: the further prompts are drawn at random, beside the epoch's order.
    Nearest part: draw_in_shuffled_order, which it follows.
    Edges: share 0 -> the draws; a pool that is too small is passed through again; the state records
    that some were drawn, so a restart draws none twice.
    """

    writes: ClassVar[tuple[str, ...]] = ("spare_B",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column("spare_B", "float", "1: drawn beyond what a step trains on", "share", door=None),
    )
    # Spare prompts per prompt of the step. Default: released code (64 under way for 32).
    share: float = 1.0

    def __post_init__(self) -> None:
        require(self, "share", low=0)

    def init(self) -> dict[str, bool]:
        """None drawn yet."""
        return {"begun": False}

    def __call__(
        self, draws: tuple[Draw, ...], pool: tuple[int, ...], state: dict[str, bool],
        rng: torch.Generator, num_wanted: int | None = None,
    ) -> Result:  # fmt: skip
        marked = [draw._replace(columns={**draw.columns, "spare_B": 0.0}) for draw in draws]
        if draws and num_wanted is None and not state["begun"]:
            own = {draw.uid for draw in draws}
            most = len(draws) + round(self.share * len(draws))
            others = [uid for uid in pool if uid not in own] or list(pool)
            while len(marked) < most:
                order = torch.randperm(len(others), generator=rng).tolist()
                marked += [
                    Draw(others[place], draws[0].num_rollouts, {"spare_B": 1.0})
                    for place in order[: most - len(marked)]
                ]
        return Result(tuple(marked), {"begun": state["begun"] or bool(draws)})
