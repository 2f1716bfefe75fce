"""Visit every training prompt once per epoch, in an order shuffled again each epoch."""

from dataclasses import dataclass
from typing import Any

import torch

from strop.method.part import Draw, Result, require


@dataclass(frozen=True)
class DrawInShuffledOrder:
    """All prompts are practised equally often; none twice before all were seen once.

        draws = next `num_prompts` of a permutation of the pool; a new permutation when it ends

    Reads: pool (uids of the training prompts).   Writes: draws.
    Source: none; the usual epoch order.
    Differs from the source: no.
    Nearest part: none.
    Edges: a pool smaller than num_prompts is passed through several times in one step; the state
    (order, cursor, epoch) is in the checkpoint, so a restart loses nothing.
    """

    # Prompts a step. Default: ours (the shipped model on a CPU).
    num_prompts: int = 32
    # Rollouts of each prompt. Default: ours (the shipped model on a CPU).
    num_rollouts: int = 16

    def __post_init__(self) -> None:
        require(self, "num_prompts", "num_rollouts", low=1)

    def init(self) -> dict[str, Any]:
        """The initial state: no epoch has started."""
        return {"order": torch.zeros(0, dtype=torch.int64), "cursor": 0, "epoch": -1}

    def __call__(
        self,
        pool: tuple[int, ...],
        state: dict[str, Any],
        rng: torch.Generator,
        num_wanted: int | None = None,
    ) -> Result:
        order, cursor, epoch = state["order"], state["cursor"], state["epoch"]
        wanted = self.num_prompts if num_wanted is None else num_wanted
        chosen: list[int] = []
        while len(chosen) < wanted:
            if cursor >= len(order):
                order, cursor = torch.randperm(len(pool), generator=rng), 0
                epoch += 1
            taken = order[cursor : cursor + wanted - len(chosen)].tolist()
            chosen += taken
            cursor += len(taken)
        chance = 1 / len(pool)  # over the orders: each prompt comes as often as any other
        draws = tuple(Draw(pool[row], self.num_rollouts, probability=chance) for row in chosen)
        new = {"order": order, "cursor": cursor, "epoch": epoch}
        return Result(draws, new, {"data/epoch": epoch + cursor / len(pool)})
