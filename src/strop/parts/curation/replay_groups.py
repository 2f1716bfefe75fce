"""Fill a step up with whole groups of earlier steps."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Curated, Result, require
from strop.method.services import Stores
from strop.parts.curation._store import (
    as_rows,
    columns_of,
    joined,
    opened,
    put_away,
    roles_of,
    store_metrics,
)


@dataclass(frozen=True)
class ReplayGroups:
    """A step learns from stored groups beside its fresh ones, each compared within itself.

        N fresh groups; from step `after` + 1 on round((1 - share) / share N) stored ones beside
        them, drawn evenly without replacement from the newest groups of all prompts, if their mean
        outcome is neither 0 nor 1
        store <- its newest capacity - N groups, then the fresh ones (0: capacity round(N / share))

    Policy tokens of earlier steps get origin 4 (replay); logp_behavior_T, logp_sampler_T and
    version_T stay those of the policy that drew them. Metrics: replay/stored, /drawn (rollouts),
    /age_mean (steps, of those drawn), /share (replayed groups / groups).

    Reads: batch, scored_B [B] bool; stores, rng, state.   Writes: rows to add.
    Source: arXiv 2506.05316; code ASTRAL-Group/data-efficient-llm-rl.
    Differs from the source: no; its code stores the fresh groups twice, which changes nothing.
    Nearest part: replay_rollouts, which draws single rollouts, the fresh ones among them.
    Edges: too few stored groups -> all of them; unscored rollouts are not stored; the store is in
    the checkpoint.
    """

    # Share of a step's groups that are fresh; 1: all, nothing is stored. Default: released code.
    share: float = 0.5
    # Groups that fit into the store; 0: as many as a step has. Default: released code (512 of 512).
    capacity: int = 0
    # Steps that only fill the store. Default: released code (2, its first selection).
    after: int = 2

    def __post_init__(self) -> None:
        require(self, "share", low=1e-4, high=1.0)
        require(self, "capacity", "after", low=0)

    def init(self) -> dict[str, Any]:
        """An empty store."""
        return {"columns": {}, "steps": 0}

    def __call__(
        self, batch: Batch, scored_B: Tensor, stores: Stores, state: dict[str, Any],
        rng: torch.Generator,
    ) -> Result:  # fmt: skip
        step, fresh, filling = int(batch["step"]), batch.size("P"), state["steps"] < self.after
        stored, add, drawn = state["columns"], None, None
        wanted = 0 if filling else round((1 - self.share) / self.share * fresh)
        if stored and wanted:
            drawn = self._drawn(opened(stored, batch), wanted, rng)
            if drawn.size("B"):
                add = as_rows(drawn, batch, step, stores)
        columns = stored
        if self.share < 1:
            room = self.capacity or (fresh if filling else round(fresh / self.share))
            new = put_away(batch.keep(scored_B), step, stores)
            left = self._stored(stored, new, room)
            columns = columns_of(left, step, stores) if left is not None else stored
        replayed = add.size("P") if add is not None else 0
        metrics = {
            **store_metrics(len(columns["group_B"]) if columns else 0, drawn, step),
            "replay/share": replayed / max(fresh + replayed, 1),
        }
        curated = Curated(torch.ones_like(scored_B), "replayed", add=add)
        return Result(curated, {"columns": columns, "steps": state["steps"] + 1}, metrics)

    def _drawn(self, store: Batch, wanted: int, rng: torch.Generator) -> Batch:
        """Stored groups at random: the newest of each prompt and role, of a mean not 0 or 1."""
        num = store.size("P")
        key_P, keys = segments.key_of(store["uid_P"], roles_of(store))
        last_N = segments.extreme(torch.arange(num).double(), key_P, keys, largest=True)
        newest_P = last_N[key_P] == torch.arange(num)
        mean_P = segments.mean(store["outcome_B"].double(), store["group_B"], num)
        rows = (newest_P & (mean_P != 0) & (mean_P != 1)).nonzero().squeeze(1)
        rows = rows[torch.randperm(len(rows), generator=rng)[:wanted]]
        return store.keep(torch.isin(store["group_B"], rows))

    def _stored(self, stored: dict[str, Tensor], new: Batch, room: int) -> Batch | None:
        """The store after the step; None: it is unchanged."""
        if not new.size("B"):
            return None
        kept = max(room - new.size("P"), 0)
        if stored:
            old = opened(stored, new)
            old = old.keep(old["group_B"] >= old.size("P") - kept)
            new = joined(old.columns, new) if old.size("B") else new
        return new.keep(new["group_B"] >= new.size("P") - room)
