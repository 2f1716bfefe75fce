"""Stop generating once enough prompts are answered; the others continue in the next step."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from strop.engines.asynchronous import AsyncEngine
from strop.engines.base import Answer
from strop.method.part import Draw, require
from strop.method.services import Sampling, Texts
from strop.parts.rollout._unfinished import (
    Group,
    Saved,
    batch_of,
    generate,
    new_groups,
    opened,
    put_off,
)
from strop.parts.rollout.base import COLUMNS, TOKENS_DISCARDED, Rollouts, SamplingFields


@dataclass(frozen=True)
class LeaveSlowGroupsForLater(SamplingFields):
    """No step waits for long answers: they are trained on in the step in which they end.

        target = draws of this step that are not spare (spare_B);  under way: what was put off
        before, oldest first, and all draws of this step
        stop when `target` groups have ended; a group that has not is put off whole: its ended
        answers stay, the others continue from their tokens with what is left of max_tokens

    Every token keeps the log-probability and the version of the weights that drew it. Metrics:
    partial/groups_left, /tokens_left (put off), /given_up (groups restarted because of max_age).

    Reads: draws (their spare_B).   Writes: the token, turn, rollout and prompt tables.
    Source: arXiv 2509.18521; code RLsys-Foundation/APRIL.
    Differs from the source: tokens are kept, not texts; groups that end beyond the target are put
    off as well, not lost; max_age is ours.
    Nearest part: sample_independently; equal to it without spare draws.
    Edges: groups that end in one engine step count in the order drawn; what was put off is in the
    checkpoint.
    """

    writes: ClassVar[tuple[str, ...]] = COLUMNS
    acted: ClassVar[tuple[str, ...]] = ("partial/groups_left", "partial/given_up")
    ends_others: ClassVar[bool] = True
    # Steps after which a token is too old: its group is restarted. 0: never. Default: ours (the
    # source sets no limit).
    max_age: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "max_age", low=0)

    def init(self) -> Saved:
        """Nothing is put off."""
        return {"groups": (), "phases": 0}

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        rng: torch.Generator, state: Saved,
    ) -> Rollouts:  # fmt: skip
        new = new_groups(draws, self.requests(draws, texts, sampling, rng))
        ask = partial(self.request, sampling)  # with the current options
        groups = [opened(saved, texts, ask) for saved in state["groups"]] + new
        target = sum(not draw.columns.get("spare_B") for draw in draws)
        complete, _ = await generate(engine, groups, lambda group: group.ended, target)
        ended = complete[:target]
        taken = [group for group in groups if group in ended]
        left = [group for group in groups if group not in ended]
        phase = state["phases"] + 1
        metrics = {
            "partial/groups_left": float(len(left)),
            "partial/tokens_left": float(sum(group.length for group in left)),
        }
        metrics |= self._give_up(left, max((v for g in groups for v in g.versions()), default=0))
        saved = tuple(put_off(group, phase) for group in left)
        return batch_of(taken), {"groups": saved, "phases": phase}, metrics

    def _give_up(self, left: Sequence[Group], version: int) -> dict[str, float]:
        """Empties the groups that would be too old in the next step; `version`: the newest."""
        old = [
            group
            for group in left
            if self.max_age and version + 1 - min(group.versions(), default=version) > self.max_age
        ]
        lost = sum(group.length for group in old)
        for group in old:
            group.answers = [Answer(answer.request, ()) for answer in group.answers]
        return {"partial/given_up": len(old), TOKENS_DISCARDED: lost}
