"""Pass over a step's rollouts once or several times, in one or several optimiser steps."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch

from strop.batch import Batch
from strop.part import Update, require


@dataclass(frozen=True)
class SplitIntoMinibatches:
    """More updates per rollout: each prompt group is trained on once per epoch.

        updates = num_epochs * num_minibatches; groups are shuffled anew every epoch

    Reads: batch.   Writes: updates (tokens_T each).
    Source: arXiv 1707.06347, algorithm 1.
    Differs from the source: splits prompt groups, never a group.
    Nearest part: none.
    Edges: more mini-batches than groups -> the empty ones are left out; one update by default, on
    the policy that sampled the rollouts.
    """

    # Passes over the rollouts. Default: paper (DeepSeekMath: a single update per exploration).
    num_epochs: int = 1
    # Optimiser steps per pass. Default: paper (DeepSeekMath: a single update per exploration).
    num_minibatches: int = 1

    def __post_init__(self) -> None:
        require(self, "num_epochs", low=1)
        require(self, "num_minibatches", low=1)

    @property
    def num_updates(self) -> int:
        """Most optimiser steps of one training step."""
        return self.num_epochs * self.num_minibatches

    def __call__(self, batch: Batch, rng: torch.Generator) -> Generator[Update, Any, None]:
        if self.num_updates == 1:
            yield Update(batch["mask_T"])
            return
        for _ in range(self.num_epochs):
            order = torch.randperm(batch.size("P"), generator=rng).to(batch["group_T"].device)
            for part in order.tensor_split(self.num_minibatches):
                if part.numel():
                    yield Update(torch.isin(batch["group_T"], part) & batch["mask_T"])
