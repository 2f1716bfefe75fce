"""Limit the episodes of a prompt to the turns of its longest success so far."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Draw, Result, require


@dataclass(frozen=True)
class LimitTurnsBySuccesses:
    """Episodes that outlast every success of their prompt are cut, and take no more time.

        turns allowed = max(least, min(most, turns of the prompt's longest success so far))
        no success yet: as many as the environment allows

    Never more than the environment allows; each player's turns count. Rollout parts that play
    episodes from their beginning, such as play_turns, read it.
    Metrics: turns/limit (mean, of the draws that have one), turns/frac_limited (of all draws).

    Reads: draws, state; uid_P [P], group_B [B], rollout_K [K] int, outcome_B [B] float, scored_B
    [B] bool of all that was sampled (observe).   Writes: draws, which carry `max_turns`.
    Source: arXiv 2509.23866 (dynamic trajectory length).
    Differs from the source: no; that tasks without a success have the usual limit is inferred.
    Nearest part: spare_solved_prompts, which limits how many rollouts there are.
    Edges: no success can be longer than the limit, so a limit stays once it is set; the longest
    successes, keyed by uid, are in the checkpoint.
    """

    carries: ClassVar[tuple[str, ...]] = ("max_turns",)
    # Fewest turns that are allowed. Default: paper (10).
    least: int = 10
    # Most turns of a prompt that has a success. Default: paper (50).
    most: int = 50
    # Outcome from which a rollout is a success. Default: ours (1, of rewards in {0, 1}).
    success: float = 1.0

    def __post_init__(self) -> None:
        require(self, "least", low=1)
        require(self, "most", low=self.least)
        require(self, "success")

    def init(self) -> dict[str, Any]:
        """No success seen."""
        none = torch.zeros(0, dtype=torch.int64)
        return {"uid": none, "turns": none}

    def __call__(self, draws: tuple[Draw, ...], state: dict[str, Any]) -> Result:
        uid_N = torch.tensor([draw.uid for draw in draws], dtype=torch.int64)
        row_N, known_N = segments.find(state["uid"], uid_N)
        limited, limits = [], []
        for draw, row, known in zip(draws, row_N.tolist(), known_N.tolist(), strict=True):
            if known:
                limit = max(self.least, min(self.most, int(state["turns"][row])))
                draw = draw._replace(columns={**draw.columns, "max_turns": limit})
                limits.append(limit)
            limited.append(draw)
        metrics = {
            "turns/limit": sum(limits) / max(len(limits), 1),
            "turns/frac_limited": len(limits) / max(len(draws), 1),
        }
        return Result(tuple(limited), state, metrics)

    def observe(
        self, uid_P: Tensor, group_B: Tensor, rollout_K: Tensor, outcome_B: Tensor,
        scored_B: Tensor, state: dict[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """The longest successes after a step."""
        turns_B = segments.count(rollout_K, len(outcome_B))
        right_B = scored_B & (outcome_B >= self.success)
        uid_N = torch.cat([state["uid"], uid_P[group_B[right_B]]])
        turns_N = torch.cat([state["turns"], turns_B[right_B]])
        unique_M, key_N = torch.unique(uid_N, return_inverse=True)
        every_N = torch.ones_like(key_N, dtype=torch.bool)
        longest_M = segments.extreme(turns_N, key_N, len(unique_M), every_N, largest=True)
        return {"uid": unique_M, "turns": longest_M}
