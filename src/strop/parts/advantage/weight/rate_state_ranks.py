"""Rate rollouts by whether their hidden states spread wider than usual, or faster and faster."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import require

TINY, MOST = 1e-8, 5.0
NAMES = ("rank", "rank_speed", "rank_turn")


@dataclass(frozen=True)
class RateStateRanks:
    """Rollouts that explore, or exploit at a rising pace, get a bonus on their tokens.

        dev(x) = clip((x - mu) / (|mu| + 1e-8), -5, 5);  b = sigmoid(gain * dev(rank_turn))
        bonus_t = weight * relu(b * tanh(dev(rank)) + (1 - b) * tanh(dev(rank_speed)))

    mu: mean of the earlier steps' means over scored rollouts, mu <- (1 - rate) mu + rate * (mean of
    the step before), after use, from 0; without an earlier step the bonus is 0. weight is 1, or
    with by_score 1 - (s + 1) / 2, s the same mean of rewards, held within [0, 1].

    Reads: rank_B, rank_speed_B, rank_turn_B, reward_B [B] float, scored_B [B] bool, rollout_T [T]
    int, mask_T [T] bool, state.   Writes: bonus_T [T] float.
    Source: arXiv 2509.23808; code hf618/VERL (reward_manager_versions.py, ray_trainer.py).
    Differs from the source: every policy token has the bonus, in its code the last (last_token).
    Nearest part: add_capped_bonus, which adds it.
    Edges: unscored -> 0 and outside the means; the state is in the checkpoint.
    """

    writes: ClassVar[tuple[str, ...]] = ("bonus_T",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column("bonus_T", "float", "bonus of a token", "reward"),
    )
    # How sharply the turn decides between the two. Default: released code.
    gain: float = 2.0
    # Speed of the means. Default: released code.
    rate: float = 0.3
    # Whether the bonus shrinks as rewards grow. Default: released code (no: weight 1).
    by_score: bool = False
    # Whether only a rollout's last policy token has it. Default: ours (no; released code: yes).
    last_token: bool = False

    def __post_init__(self) -> None:
        require(self, "gain")
        require(self, "rate", low=0.0, high=1.0)

    def init(self) -> dict[str, Any]:
        """Nothing seen yet."""
        return {"usual": (0.0,) * 4, "last": ()}

    def update(
        self,
        rank_B: Tensor,
        rank_speed_B: Tensor,
        rank_turn_B: Tensor,
        reward_B: Tensor,
        scored_B: Tensor,
        state: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The means after a step."""
        if not bool(scored_B.any()):
            return dict(state)
        columns = (rank_B, rank_speed_B, rank_turn_B, reward_B)
        now = tuple(segments.overall(c, scored_B) for c in columns)
        usual = state["usual"]
        if state["last"]:
            pairs = zip(usual, state["last"], strict=True)
            usual = tuple((1 - self.rate) * mu + self.rate * last for mu, last in pairs)
        return {"usual": usual, "last": now}

    def __call__(
        self,
        rank_B: Tensor,
        rank_speed_B: Tensor,
        rank_turn_B: Tensor,
        reward_B: Tensor,
        scored_B: Tensor,
        rollout_T: Tensor,
        mask_T: Tensor,
        state: Mapping[str, Any] | None = None,
    ) -> Tensor:
        known = state is not None and bool(state["last"])
        usual = state["usual"] if state is not None else (0.0,) * 4
        columns = zip((rank_B, rank_speed_B, rank_turn_B), usual, strict=False)
        rank_B, speed_B, turn_B = (
            ((x - mu) / (abs(mu) + TINY)).clamp(-MOST, MOST) for x, mu in columns
        )
        share_B = torch.sigmoid(self.gain * turn_B)
        bonus_B = (share_B * rank_B.tanh() + (1 - share_B) * speed_B.tanh()).relu()
        if self.by_score:
            bonus_B = bonus_B * min(max(1 - (usual[3] + 1) / 2, 0.0), 1.0)
        bonus_B = torch.where(scored_B, bonus_B, 0) if known else torch.zeros_like(bonus_B)
        if self.last_token:
            mask_T = segments.is_last(rollout_T, scored_B.shape[0], mask_T)
        return torch.where(mask_T, bonus_B[rollout_T], 0)
