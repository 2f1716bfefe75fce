"""Imitate the better rollouts of earlier steps again, measured against the current usual reward."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Curated, Result, require
from strop.method.services import Stores
from strop.parts.curation._store import as_rows, columns_of, joined, opened, put_away, store_metrics


@dataclass(frozen=True)
class ReplaySuccesses:
    """Once enough good rollouts are stored, they come back with advantages of the current policy.

        P50 = median of the last `history` groups' mean rewards
        as soon as more than 1.5 size of the store have R > P50: A' = R - P50; of those with
        A' >= 0 a random power of two, at most size, come back with A', origin 4 (replay); the
        store is emptied;   normalize_std: A' = (R - P50) / (median of the groups' deviations +
        1e-6);   decay > 0: A' = decay A, and all stored rollouts count
        then: store <- store made at most max_age steps ago + this step's with A > 0

    Replayed rollouts stay in groups of their own and keep their log-probabilities. Metrics:
    replay/stored, /drawn, /age_mean, /baseline (P50).

    Reads: batch, reward_B [B] float (R), made_advantage_B [B] float (A), scored_B [B] bool;
    stores, rng, state.   Writes: rows to add.
    Source: arXiv 2509.22601; code TencentYoutuResearch/SPEAR.
    Differs from the source: its history holds whole steps, so it may be a step longer; a median
    deviation of 0 (most groups have one outcome) divides nothing, where its code divides by 1e-6.
    Nearest part: replay_by_advantage, which draws every step by the advantages of that time.
    Edges: no history -> P50 0; fewer than two with A' >= 0 -> none; state is in the checkpoint.
    """

    # Most rollouts that come back at once. Default: released code (2048).
    size: int = 2048
    # Groups whose rewards are remembered. Default: released code (10240).
    history: int = 10240
    # Steps after which a rollout leaves. Default: released code (10).
    max_age: int = 10
    # Whether advantages are divided by the usual deviation. Default: released code (no).
    normalize_std: bool = False
    # Factor of the old advantage, kept in place of a new one; 0: a new one. Default: released code
    # (scripts).
    decay: float = 0.0

    def __post_init__(self) -> None:
        require(self, "size", "history", low=1)
        require(self, "max_age", low=0)
        require(self, "decay", low=0.0, high=1.0)

    def init(self) -> dict[str, Any]:
        """An empty store and no history."""
        none = torch.zeros(0, dtype=torch.float64)
        return {"columns": {}, "means": none, "stds": none}

    def __call__(
        self, batch: Batch, reward_B: Tensor, made_advantage_B: Tensor, scored_B: Tensor,
        stores: Stores, state: dict[str, Any], rng: torch.Generator,
    ) -> Result:  # fmt: skip
        step, usual = int(batch["step"]), _median(state["means"])
        store = opened(state["columns"], batch) if state["columns"] else None
        add = drawn = None
        if store is not None and self._is_due(store, usual):
            drawn = self._drawn(store, usual, _median(state["stds"]), rng)
            store = None
            if drawn.size("B"):
                add = as_rows(drawn, batch, step, stores)
        new = put_away(batch.keep(scored_B & (made_advantage_B > 0)), step, stores)
        if store is not None:
            young = store.keep(store["made_at_B"] >= step - self.max_age)
            new = joined(young.columns, new) if young.size("B") else new
        metrics = {**store_metrics(new.size("B"), drawn, step), "replay/baseline": usual}
        kept = {"columns": columns_of(new, step, stores), **self._remembered(batch, state)}
        return Result(Curated(torch.ones_like(scored_B), "replayed", add=add), kept, metrics)

    def _is_due(self, store: Batch, usual: float) -> bool:
        """Whether enough good rollouts are stored."""
        good_B = store["reward_B"].double() > usual
        return (store.size("B") if self.decay else int(good_B.sum())) > 1.5 * self.size

    def _drawn(self, store: Batch, usual: float, spread: float, rng: torch.Generator) -> Batch:
        """A power of two of stored rollouts, with their current advantages."""
        if self.decay:
            advantage_B = self.decay * store["made_advantage_B"]
        else:
            scale = spread + 1e-6 if self.normalize_std and spread > 0 else 1.0
            advantage_B = ((store["reward_B"].double() - usual) / scale).to(store["reward_B"].dtype)
        row = (advantage_B >= 0).nonzero().squeeze(1)
        number = min(1 << (len(row).bit_length() - 1), self.size) if len(row) > 1 else 0
        row = row[torch.randperm(len(row), generator=rng)[:number]].sort().values
        return store.set(made_advantage_B=advantage_B).take(row)

    def _remembered(self, batch: Batch, state: dict[str, Any]) -> dict[str, Tensor]:
        """The history with this step's groups."""
        keys = (batch["reward_B"].double(), batch["group_B"], batch.size("P"), batch["scored_B"])
        some_P = segments.count(*keys[1:]) > 0
        means = torch.cat([state["means"], segments.mean(*keys)[some_P]])
        stds = torch.cat([state["stds"], segments.std(*keys, ddof=0)[some_P]])
        return {"means": means[-self.history :], "stds": stds[-self.history :]}


def _median(values_N: Tensor) -> float:
    """The median; 0 if there are no values."""
    return float(values_N.quantile(0.5)) if len(values_N) else 0.0
