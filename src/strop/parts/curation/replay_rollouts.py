"""Keep rollouts in a store that lasts over steps, and learn from a draw of them."""

from dataclasses import dataclass

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
    put_away,
    store_metrics,
    uids_of,
)


@dataclass(frozen=True)
class ReplayRollouts:
    """A step learns from rollouts of earlier steps too, each in the group of its own step.

        store <- store + this step's scored rollouts, without those made max_age or more steps ago
        drawn: num_drawn of the store at random, each once, at most per_prompt of a prompt
        keep_drawn off: drawn rollouts leave the store

    The policy tokens of earlier steps get origin 4 (replay); logp_behavior_T, logp_sampler_T and
    version_T stay those of the policy that drew them. Metrics: replay/stored (rollouts in the store
    after the step), /drawn, /aged_out, /age_mean (steps, of those drawn).

    Reads: batch, scored_B [B] bool; stores, rng.   Writes: rows to add in place of all.
    Source: arXiv 2402.19446 (all stay); arXiv 2505.23564, code only: AIFrameResearch/SPO
    (keep_drawn off, per_prompt, max_age).
    Differs from the source: 2402.19446 draws with replacement.
    Nearest part: replace_failed_with_demonstrations, the other part that adds rows.
    Edges: 0 is no limit; a full store drops the oldest; the store is in the checkpoint.
    """

    # Turns that fit into the store; 0: any number. Default: released code (ArCHer: 100000).
    capacity: int = 100_000
    # Rollouts drawn in a step; 0: as many as allowed. Default: ours (all).
    num_drawn: int = 0
    # Rollouts of a prompt drawn in a step; 0: any number. Default: ours (any).
    per_prompt: int = 0
    # Steps after which a rollout leaves; 0: never. Default: ours (never).
    max_age: int = 0
    # Whether drawn rollouts stay in the store. Default: released code (ArCHer: yes).
    keep_drawn: bool = True

    def __post_init__(self) -> None:
        require(self, "capacity", "num_drawn", "per_prompt", "max_age", low=0)

    def init(self) -> dict[str, dict[str, Tensor]]:
        """An empty store."""
        return {"columns": {}}

    def __call__(
        self, batch: Batch, scored_B: Tensor, stores: Stores, state: dict[str, dict[str, Tensor]],
        rng: torch.Generator,
    ) -> Result:  # fmt: skip
        step, nobody_B = int(batch["step"]), torch.zeros_like(scored_B)
        new = put_away(batch.keep(scored_B), step, stores)
        store = joined(state["columns"], new)
        young_B = store["made_at_B"] > step - self.max_age
        aged_out = int((~young_B).sum()) if self.max_age else 0
        store = store.keep(young_B) if aged_out else store
        store = self._newest(store)
        index_B = self._drawn(store, rng)
        drawn = store.take(index_B)
        left = store
        if not self.keep_drawn:
            left = store.keep(~torch.isin(store["index_B"], index_B))
        metrics = {**store_metrics(left.size("B"), drawn, step), "replay/aged_out": float(aged_out)}
        rows = as_rows(drawn, batch, step, stores)
        kept = {"columns": columns_of(left, step, stores)}
        return Result(Curated(nobody_B, "into_store", add=rows), kept, metrics)

    def _newest(self, store: Batch) -> Batch:
        """The newest rollouts that fit."""
        if not self.capacity or store.size("K") <= self.capacity:
            return store
        turns_B = segments.count(store["rollout_K"], store.size("B"))
        after_B = turns_B.flip(0).cumsum(0).flip(0)  # turns of the rollout and all newer ones
        return store.keep(after_B <= self.capacity)

    def _drawn(self, store: Batch, rng: torch.Generator) -> Tensor:
        """Rows of the rollouts drawn, oldest first."""
        order = torch.randperm(store.size("B"), generator=rng)
        if self.per_prompt:
            uid_N = uids_of(store)[order]
            key_N, num = segments.key_of(uid_N)
            order = order[segments.order_within(key_N, num) < self.per_prompt]
        return (order[: self.num_drawn] if self.num_drawn else order).sort().values
