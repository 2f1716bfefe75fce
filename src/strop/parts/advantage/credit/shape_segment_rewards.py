"""Price what a turn decides: keeping its subgoal, changing it silently, unclear actions."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import present, require, require_one_of


@dataclass(frozen=True)
class ShapeSegmentRewards:
    """A turn that keeps its subgoal pays for it, and pays more if it still writes another one.

        shaped_k = r_k + c_keep' [keeps] - c_inv [action not understood] + c_cons [keeps, but the
        subgoal differs from the turn's before];   c_keep' = c_keep, or c_keep / turns of rollout

    Reads: reward_K [K] float, switch_K [K] bool, rollout_K [K] int, num_rollouts int; valid_K [K]
    bool where c_inv is not 0, subgoal_K [K] int (0: none) where c_cons is not 0.
    Writes: shaped_reward_K [K] float.
    Source: arXiv 2602.16165; code JonP07/HiPER-agent (hiper_hae/core_hae.py).
    Differs from the source: no.
    Nearest part: discount_turn_rewards, which prices actions that were not understood.
    Edges: a first turn that says to keep pays too, as in the code; "normalized" prices nothing in
    a rollout of one turn; both subgoals must be there to differ.
    """

    writes: ClassVar[tuple[str, ...]] = ("shaped_reward_K",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "shaped_reward_K", "float", "reward of a turn with its keeping and switching", "reward"
        ),
    )
    # Added where a turn keeps, reward units. Default: released code (ALFWorld).
    c_keep: float = -0.3
    # "fixed" for each such turn, or "normalized" by the turns of the rollout. Default: released
    # code.
    keep_mode: str = "normalized"
    # Taken from a turn whose action was not understood, reward units. Default: released code.
    c_inv: float = 0.1
    # Added where a turn keeps and its subgoal changes, reward units. Default: released code.
    c_cons: float = -0.3

    def __post_init__(self) -> None:
        require(self, "c_keep", "c_inv", "c_cons")
        require_one_of(self, "keep_mode", ("fixed", "normalized"))

    @property
    def any_of(self) -> tuple[tuple[str, ...], ...]:
        """Understood actions and subgoals, where they have a price."""
        needed = {"valid_K": self.c_inv, "subgoal_K": self.c_cons}
        return tuple((name,) for name, price in needed.items() if price)

    def __call__(
        self,
        reward_K: Tensor,
        switch_K: Tensor,
        rollout_K: Tensor,
        num_rollouts: int,
        valid_K: Tensor | None = None,
        subgoal_K: Tensor | None = None,
    ) -> Tensor:
        keeps_K = ~switch_K.bool()
        price_K = torch.full_like(reward_K, self.c_keep)
        if self.keep_mode == "normalized":
            turns_K = segments.count(rollout_K, num_rollouts)[rollout_K]
            price_K = torch.where(turns_K > 1, price_K / turns_K, 0)
        shaped_K = reward_K + torch.where(keeps_K, price_K, 0)
        if self.c_inv:
            shaped_K = shaped_K - self.c_inv * (~present(valid_K).bool()).to(shaped_K.dtype)
        if self.c_cons:
            subgoal_K = present(subgoal_K)
            before_K = subgoal_K.roll(1)
            differs_K = (subgoal_K != before_K) & (subgoal_K != 0) & (before_K != 0)
            first_K = segments.begins(rollout_K)
            changed_K = keeps_K & differs_K & ~first_K
            shaped_K = shaped_K + self.c_cons * changed_K.to(shaped_K.dtype)
        return shaped_K
