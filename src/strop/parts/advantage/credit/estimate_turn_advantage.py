"""Credit a turn with how much better than expected things went from it on, within its segment."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import Result, require
from strop.parts.advantage.credit._bootstrap import bootstrapped, unlogged


@dataclass(frozen=True)
class EstimateTurnAdvantage:
    """A turn is credited with the critic's surprises at it and, ever less, at later turns.

        delta_k = r_k + gamma * next_k - V_k
        advantage_k = delta_k + gamma * lam * advantage_{k+1};   return_k = advantage_k + V_k

    next_k = V_{k+1}. A turn that switches begins a segment: credit stops before it, and the turn
    before it looks ahead to its entry_value_K, the value of a new segment. After a turn that is
    done: 0; after the last turn of a rollout that is not done: 0, or V_k with bootstrap_truncated.

    Reads: value_K, reward_K [K] float, rollout_K [K] int, done_K [K] bool, scored_B [B] bool;
    switch_K [K] bool and entry_value_K [K] float where turns form segments.
    Writes: advantage_K, return_K [K] float.
    Source: arXiv 2602.16165; code JonP07/HiPER-agent (hiper_hae/core_hae.py, low level).
    Differs from the source: no.
    Nearest part: estimate_generalised_advantage; equal to it where nothing switches and every turn
    has one token.
    Edges: lam 0: one step ahead; turns of unscored rollouts -> 0; values get no gradient.
    """

    writes: ClassVar[tuple[str, ...]] = ("advantage_K", "return_K")
    declares: ClassVar[tuple[Column, ...]] = (
        Column("entry_value_K", "float", "value before the first turn of a segment", "reward"),
    )
    # Discount of a turn. Default: released code (1).
    gamma: float = 1.0
    # How far surprises reach back, 0 to 1. Default: released code (1).
    lam: float = 1.0
    # Whether an episode that was cut counts as continuing. Default: released code (ALFWorld).
    bootstrap_truncated: bool = True

    def __post_init__(self) -> None:
        require(self, "gamma", "lam", low=0.0, high=1.0)

    @property
    def unlogged(self) -> frozenset[str]:
        """The metrics of cut episodes, where these count as ended."""
        return unlogged(self.bootstrap_truncated)

    def __call__(
        self,
        value_K: Tensor,
        reward_K: Tensor,
        rollout_K: Tensor,
        done_K: Tensor,
        scored_B: Tensor,
        switch_K: Tensor | None = None,
        entry_value_K: Tensor | None = None,
    ) -> Result:
        value_K, done_K = value_K.detach().double(), done_K.bool()
        first_K = segments.begins(rollout_K)
        begins_K, entry_K = first_K, value_K
        if switch_K is not None and entry_value_K is not None:
            begins_K, entry_K = first_K | switch_K.bool(), entry_value_K.detach().double()
        ahead_K = torch.where(begins_K.roll(-1), entry_K.roll(-1), value_K.roll(-1))
        cut_K = value_K if self.bootstrap_truncated else torch.zeros_like(value_K)
        ahead_K = torch.where(first_K.roll(-1), cut_K, ahead_K)  # nothing follows in the rollout
        ahead_K = torch.where(done_K, 0, ahead_K)
        delta_K = reward_K.double() + self.gamma * ahead_K - value_K
        over_K = done_K.long().cumsum(0) - done_K.long()  # credit stops where an episode ended
        key_K = begins_K.long().cumsum(0) + over_K
        credit_K = segments.reward_to_go(delta_K, key_K, self.gamma * self.lam)
        counts_K = scored_B[rollout_K]
        found = tuple(
            torch.where(counts_K, x_K, 0).to(reward_K.dtype)
            for x_K in (credit_K, credit_K + value_K)
        )
        if not self.bootstrap_truncated:
            return Result(found)
        end_K = counts_K & first_K.roll(-1)
        return Result(found, metrics=bootstrapped(value_K[end_K], ~done_K[end_K]))
