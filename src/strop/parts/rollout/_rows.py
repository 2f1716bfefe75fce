"""Where the rollouts of a draw lie in a batch, and which ones they fork from."""

from collections.abc import Iterator, Sequence

import torch

from strop.batch.batch import Batch
from strop.method.part import Draw


def rows_by_draw(draws: Sequence[Draw]) -> Iterator[tuple[Draw, range]]:
    """Each draw with the rows of its rollouts, which lie together."""
    first = 0
    for draw in draws:
        yield draw, range(first, first + draw.num_rollouts)
        first += draw.num_rollouts


def with_parents(batch: Batch, parents: Sequence[int], forks: Sequence[int]) -> Batch:
    """The batch with the row that each rollout forks from, and after how many tokens; -1: none."""
    parent_B, fork_at_B = (torch.tensor(each, dtype=torch.int64) for each in (parents, forks))
    return batch.set(parent_B=parent_B, fork_at_B=fork_at_B)
