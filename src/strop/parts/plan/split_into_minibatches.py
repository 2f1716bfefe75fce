"""Pass over a step's rollouts once or several times, in one or several optimiser steps."""

from dataclasses import dataclass

import torch

from strop.batch import segments
from strop.batch.batch import Batch
from strop.batch.columns import REPLAY
from strop.method.part import Update, Updates, require
from strop.method.schedule import Schedule


@dataclass(frozen=True)
class SplitIntoMinibatches:
    """More updates per rollout: each prompt group is trained on once per epoch.

        updates = num_epochs * num_minibatches; groups are shuffled again every epoch
        replayed_last: groups with replayed tokens take no part in these; all of them together form
        one more update after them

    Reads: batch.   Writes: updates (tokens_T each).
    Source: arXiv 1707.06347, algorithm 1; replayed_last arXiv 2509.22601 (released code).
    Differs from the source: splits prompt groups, never a group.
    Nearest part: none.
    Edges: more mini-batches than groups -> the empty ones are left out; one update by default, on
    the policy that sampled the rollouts; nothing replayed -> no further update.
    """

    # Passes over the rollouts. Default: paper (DeepSeekMath: a single update per exploration).
    num_epochs: int = 1
    # Optimiser steps per pass. Default: paper (DeepSeekMath: a single update per exploration).
    num_minibatches: int = 1
    # Whether replayed groups have an update of their own. Default: ours (no).
    replayed_last: bool = False

    def __post_init__(self) -> None:
        require(self, "num_epochs", "num_minibatches", low=1)

    @property
    def num_updates(self) -> int | None:
        """Most optimiser steps of one training step; None while a schedule sets it."""
        if isinstance(self.num_epochs, Schedule) or isinstance(self.num_minibatches, Schedule):
            return None
        return self.num_epochs * self.num_minibatches + self.replayed_last

    def __call__(self, batch: Batch, rng: torch.Generator) -> Updates:
        if self.num_updates == 1:
            yield Update(batch["mask_T"])
            return
        group_T, mask_T = batch["group_T"], batch["mask_T"]
        last_P = torch.zeros(batch.size("P"), dtype=torch.bool, device=group_T.device)
        if self.replayed_last:
            last_P = segments.count(group_T, len(last_P), batch["origin_T"] == REPLAY) > 0
        row = (~last_P).nonzero().squeeze(1)
        for _ in range(self.num_epochs):
            order = torch.randperm(len(row), generator=rng).to(row.device)
            for part in row[order].tensor_split(self.num_minibatches):
                if part.numel():
                    yield Update(segments.among(group_T, part, len(last_P)) & mask_T)
        if last_P.any():
            yield Update(last_P[group_T] & mask_T)
