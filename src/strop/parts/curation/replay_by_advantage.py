"""Learn from rollouts drawn by the size of their advantage; earlier ones fill the gaps."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.method.part import Curated, Result, require
from strop.method.services import Stores
from strop.parts.curation._store import as_rows, columns_of, joined, put_away, store_metrics


@dataclass(frozen=True)
class ReplayByAdvantage:
    """An update is full of rollouts that teach something, however few of the new ones do.

        effective: scored, A != 0;  wanted = floor(share * scored rollouts of this step)
        store <- the newest `capacity` of (store, this step's effective ones)
        min(wanted, effective) of this step's effective ones, P ~ |A|^exponent, with replacement
        the rest from the store, P ~ (|A| + floor)^exponent, with replacement; a store smaller than
            the rest is first taken whole, floor((rest - 1) / store size) times

    The policy tokens of earlier steps get origin 4 (replay); all rows keep A, logp_behavior_T and
    logp_sampler_T. Metrics: replay/stored, /drawn (from the store), /age_mean, /effective
    (effective / scored rollouts of this step).

    Reads: batch, made_advantage_B [B] float (A), scored_B [B] bool; stores, rng.   Writes: rows to
    add in place of all.
    Source: code only: TIGER-AI-Lab/VL-Rethinker (replay_buffer.py), which arXiv 2504.16656 cites.
    Differs from the source: draws from all effective rows; there from a random `wanted` of them.
    Nearest part: replay_rollouts, which draws at random and keeps all new ones.
    Edges: nothing effective and an empty store -> no rows; the store is in the checkpoint.
    """

    # Rollouts of an update / rollouts sampled. Default: released code (VL-Rethinker).
    share: float = 0.5
    # Rollouts that fit into the store; 0: `wanted`. Default: released code (VL-Rethinker).
    capacity: int = 0
    # Power of the weights; 0: all equal. Default: released code (VL-Rethinker).
    exponent: float = 1.0
    # Added to |A| in the store, units of A. Default: released code (VL-Rethinker).
    floor: float = 1e-4

    def __post_init__(self) -> None:
        require(self, "share", "exponent", "floor", low=0.0)
        require(self, "capacity", low=0)

    def init(self) -> dict[str, Any]:
        """An empty store."""
        return {"columns": {}}

    def __call__(
        self, batch: Batch, made_advantage_B: Tensor, scored_B: Tensor, stores: Stores,
        state: dict[str, Any], rng: torch.Generator,
    ) -> Result:  # fmt: skip
        step, num_scored = int(batch["step"]), int(scored_B.sum())
        wanted = int(self.share * num_scored + 1e-9)
        new = put_away(batch.keep(scored_B & (made_advantage_B != 0)), step, stores)
        store = joined(state["columns"], new)
        first = max(0, store.size("B") - (self.capacity or wanted or store.size("B")))
        store = store.take(torch.arange(first, store.size("B")))
        now = new.take(self._drawn(new, min(wanted, new.size("B")), 0.0, rng))
        again = store.take(self._refill(store, wanted - now.size("B"), rng))
        metrics = {
            **store_metrics(store.size("B"), again, step),
            "replay/effective": new.size("B") / max(num_scored, 1),
        }
        rows = as_rows(now.join(again), batch, step, stores)
        nobody = Curated(torch.zeros_like(scored_B), "drawn_by_advantage", add=rows)
        return Result(nobody, {"columns": columns_of(store, step, stores)}, metrics)

    def _refill(self, store: Batch, missing: int, rng: torch.Generator) -> Tensor:
        """Rows of the store that fill up an update: all of them, again and again, then a draw."""
        size = store.size("B")
        if not size or missing <= 0:
            return torch.zeros(0, dtype=torch.int64)
        times = (missing - 1) // size
        drawn = self._drawn(store, missing - times * size, self.floor, rng)
        return torch.cat([torch.arange(size).repeat(times), drawn])

    def _drawn(self, rows: Batch, num: int, floor: float, rng: torch.Generator) -> Tensor:
        """`num` rows by weight, with replacement."""
        if not num:
            return torch.zeros(0, dtype=torch.int64)
        weight_B = (rows["made_advantage_B"].double().abs() + floor) ** self.exponent
        return torch.multinomial(weight_B, num, replacement=True, generator=rng)
