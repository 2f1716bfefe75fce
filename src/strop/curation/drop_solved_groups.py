"""Train on prompts that are not yet solved every time, and sample more until there are enough."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strop import segments
from strop.curation._refill import first_live, one_round
from strop.part import Curated, Result, require


@dataclass(frozen=True)
class DropSolvedGroups:
    """Prompts whose answers are all perfect take no place; prompts never solved keep theirs.

        live: min outcome < best among the group's scored rollouts
        while live < target and rounds < max_rounds: sample `target - live` more prompts
        then keep the first `target` live groups

    Metrics: dynamic_sampling/rounds, /uniform_fraction (of the groups sampled, here the solved
    ones), /missing_prompts (target - live when the rounds ran out, else 0).

    Reads: outcome_B [B] float, group_B [B] int, scored_B [B] bool.   Writes: rows to keep.
    Source: arXiv 2509.18851; code nangongrui-ngr/NGRPO.
    Differs from the source: asks for the missing prompts, not a whole batch again; when the rounds
    run out it goes on with what there is.
    Nearest part: drop_uniform_groups, which drops the never solved prompts too.
    Edges: no scored rollout -> dropped; a lone perfect rollout -> dropped; no live group -> keeps
    nothing. A restart loses nothing: the round count is 0 between steps.
    """

    # The largest outcome there is. Default: paper (1, of rewards in {0, 1}).
    best: float = 1.0
    # Prompts wanted; 0: as many as the sampler drew first. Default: paper (the sampled batch).
    num_prompts: int = 0
    # Rounds of sampling a step, the first included; 1: no refill; 0: no limit. Default: ours (as
    # in drop_uniform_groups).
    max_rounds: int = 10

    def __post_init__(self) -> None:
        require(self, "best")
        require(self, "num_prompts", low=0)
        require(self, "max_rounds", low=0)

    def init(self) -> dict[str, Any]:
        """No round begun."""
        return {"rounds": 0, "target": 0}

    def __call__(
        self, outcome_B: Tensor, group_B: Tensor, scored_B: Tensor, state: dict[str, Any]
    ) -> Result:
        num = int(group_B.max()) + 1 if group_B.numel() else 0
        short_B = scored_B & (outcome_B < self.best)
        live_P = segments.count(group_B, num, short_B) > 0
        found = one_round(live_P, state, self.num_prompts, self.max_rounds)
        if found.again:
            everything = Curated(torch.ones_like(scored_B), "solved_group", ask=found.missing)
            state = {"rounds": found.rounds, "target": found.target}
            return Result(everything, state, found.metrics)
        keep_B = first_live(live_P, found.target)[group_B]
        return Result(Curated(keep_B, "solved_group"), self.init(), found.metrics)
