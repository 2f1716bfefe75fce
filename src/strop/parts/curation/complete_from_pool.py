"""Train on prompts whose rollouts are many and mixed; a pool of earlier ones completes the rest."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.method.part import Curated, Result, require
from strop.method.services import Stores
from strop.parts.curation._store import (
    as_rows,
    columns_of,
    in_groups,
    joined,
    marks_of,
    newest_of_prompts,
    put_away,
    store_metrics,
)


@dataclass(frozen=True)
class CompleteFromPool:
    """A prompt that fails all along learns from its newest success, however old that is.

        of each prompt: its unused rollouts of the last `versions` steps, oldest first
        fewer than `ready`, or all right -> the prompt waits
        none right -> the newest success of the pool replaces the oldest; without one it waits
        more than `ready` -> `ready` of them at random, at least one right and one wrong

    Right: outcome >= success. Waiting rollouts and `capacity` successes of each prompt stay in the
    pool. Earlier rollouts join the prompt's group with their log-probabilities, origin 4 (replay).
    Metrics: replay/stored, /drawn, /age_mean.

    Reads: batch, outcome_B [B] float, scored_B [B] bool; stores, rng, state.   Writes: rows to keep
    and to add.
    Source: arXiv 2509.23866 (experience pool); code Computer-use-agents/dart-gui (data manager).
    Differs from the source: no.
    Nearest part: bring_back_opposites, which adds where this replaces and never waits.
    Edges: a prompt with fewer than `ready` rollouts waits for its next draws, and in vain if these
    are `versions` or more steps away; unscored rollouts are neither stored nor counted; the pool is
    in the checkpoint.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"removes_uniform_groups"})
    # Rollouts of a prompt that an update takes; 0: the most that any step so far requested of one
    # prompt. Default: released code (8).
    ready: int = 8
    # Steps for which a rollout may wait, its own among them. Default: released code (2 versions).
    versions: int = 2
    # Outcome from which a rollout is right. Default: ours (1, of rewards in {0, 1}).
    success: float = 1.0
    # Newest successes of a prompt that stay. Default: ours (the one that can come back).
    capacity: int = 1
    # Steps after which a success leaves; 0: never. Default: released code (never).
    max_age: int = 0

    def __post_init__(self) -> None:
        require(self, "ready", low=2 if self.ready else 0)
        require(self, "versions", low=1)
        require(self, "success")
        require(self, "capacity", "max_age", low=0)

    def init(self) -> dict[str, Any]:
        """An empty pool."""
        return {"columns": {}, "most": 2}

    def __call__(
        self, batch: Batch, outcome_B: Tensor, scored_B: Tensor, stores: Stores,
        state: dict[str, Any], rng: torch.Generator,
    ) -> Result:  # fmt: skip
        step = int(batch["step"])
        new = put_away(batch.keep(scored_B), step, stores)
        unused_B = torch.zeros(new.size("B"), dtype=torch.bool)
        pool = joined(state["columns"], new.set(used_B=unused_B))
        first = pool.size("B") - new.size("B")  # the rows of this step follow those of the pool
        row_B = scored_B.nonzero().squeeze(1)
        keep_B, rows, groups = torch.zeros_like(scored_B), list[int](), list[int]()
        used_B = pool["used_B"].clone()
        most = max([state["most"], *torch.bincount(batch["group_B"]).tolist()])
        for group in range(batch.size("P")):
            own_B = marks_of(pool, batch, group)
            for row in self._chosen(pool, own_B, used_B, self.ready or most, step, rng):
                used_B[row] = True
                if row >= first:
                    keep_B[row_B[row - first]] = True
                else:
                    rows.append(row)
                    groups.append(group)
        add = drawn = None
        if rows:
            drawn = pool.take(torch.tensor(rows))
            add = in_groups(as_rows(drawn, batch, step, stores), batch, groups)
        left = self._left(pool.set(used_B=used_B), step)
        kept = {"columns": columns_of(left, step, stores), "most": most}
        return Result(
            Curated(keep_B, "not_ready", add=add), kept, store_metrics(left.size("B"), drawn, step)
        )

    def _chosen(
        self, pool: Batch, own_B: Tensor, used_B: Tensor, ready: int, step: int,
        rng: torch.Generator,
    ) -> list[int]:  # fmt: skip
        """The `ready` rows of the pool that a prompt is trained on; none if it waits.

        own_B: rows of the prompt.
        """
        right_B = pool["outcome_B"] >= self.success
        young_B = pool["made_at_B"] > step - self.versions
        rows = (own_B & young_B & ~used_B).nonzero().squeeze(1)
        right = int(right_B[rows].sum())
        if len(rows) < ready or right == len(rows):
            return []
        if not right:
            newest = (own_B & right_B).nonzero().squeeze(1)[-1:]
            rows = torch.cat([rows[1:], newest]) if len(newest) else newest
        if len(rows) > ready:
            rows = rows[torch.randperm(len(rows), generator=rng)]
            is_right = right_B[rows]
            front = [int(is_right.nonzero()[0]), int((~is_right).nonzero()[0])]
            rest = [n for n in range(len(rows)) if n not in front]
            rows = rows[torch.tensor([*front, *rest])][:ready]
        return sorted(rows.tolist())

    def _left(self, pool: Batch, step: int) -> Batch:
        """Rollouts that may still be used, and the newest successes of each prompt."""
        waits_B = ~pool["used_B"] & (pool["made_at_B"] > step + 1 - self.versions)
        good_B = pool["outcome_B"] >= self.success
        if self.max_age:
            good_B &= pool["made_at_B"] > step - self.max_age
        return pool.keep(waits_B | newest_of_prompts(pool, good_B, self.capacity))
