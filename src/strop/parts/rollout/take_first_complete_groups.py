"""Queue prompts: a step takes those that are answered first, and drops those that wait too long."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from strop.engines.asynchronous import AsyncEngine
from strop.engines.base import Answer
from strop.method.part import Draw, require
from strop.method.services import Sampling, Texts
from strop.parts.rollout._unfinished import Group, Saved, batch_of, generate, opened, put_off
from strop.parts.rollout.base import COLUMNS, TOKENS_DISCARDED, Rollouts, SamplingFields


@dataclass(eq=False)
class Queued(Group):
    """A prompt in the queue. made: the step that drew it."""

    made: int = 0

    @property
    def complete(self) -> bool:
        """Whether as many answers have ended as were drawn."""
        return len(self.first) >= self.draw.num_rollouts

    def cut(self) -> int:
        """Keep the answers that ended first, as many as drawn; returns tokens of the others."""
        kept = sorted(self.first[: self.draw.num_rollouts])
        spared = sum(len(self.answers[n].ids) for n in self.first if n not in kept)
        self.answers = [self.answers[n] for n in kept]
        return spared


@dataclass(frozen=True)
class TakeFirstCompleteGroups(SamplingFields):
    """A step trains on the prompts that are answered first, out of those of the last steps.

        queue: what is left of earlier steps, oldest first, and all draws of this step
        of each prompt num_rollouts + spare answers are drawn; it is complete with num_rollouts,
        those that ended first; its other answers are cancelled
        stop when as many are complete as there are draws that are not spare (spare_B)
        leave out what was drawn more than max_age steps ago

    What is not complete continues in the next step, with the weights of that step, from the
    tokens that it has. Metrics: partial/groups_left, /tokens_left (in the queue), /given_up (too
    old).

    Reads: draws (their spare_B).   Writes: the token, turn, rollout and prompt tables.
    Source: arXiv 2512.22560; code alibaba/ROLL (rollout scheduler, group queue).
    Differs from the source: what ends in one engine step, answers and groups, counts in the order
    of the queue; no filter in the queue: a curation drops groups and asks for more.
    Nearest part: leave_slow_groups_for_later; equal to it with spare = 0 while nothing is too old.
    Edges: max_age 0 and spare 0 -> sample_independently; the shortest answers come first, so spare
    ones make batches shorter; what a curation asks for counts as a step; the queue is in the
    checkpoint.
    """

    writes: ClassVar[tuple[str, ...]] = COLUMNS
    acted: ClassVar[tuple[str, ...]] = ("partial/groups_left", "partial/given_up", TOKENS_DISCARDED)
    ends_others: ClassVar[bool] = True
    # Steps after which a prompt leaves the queue. Default: released code (0, synchronous).
    max_age: int = 0
    # Answers of each prompt drawn beyond those that are needed. Default: released code (0).
    spare: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "max_age", "spare", low=0)

    def init(self) -> Saved:
        """An empty queue."""
        return {"groups": (), "step": 0}

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        rng: torch.Generator, state: Saved,
    ) -> Rollouts:  # fmt: skip
        step = state["step"]
        ask = partial(self.request, sampling)  # with the current options
        before = [(saved["made"], opened(saved, texts, ask)) for saved in state["groups"]]
        old = [Queued(group.draw, group.answers, made=made) for made, group in before]
        stale = [group for group in old if step - group.made > self.max_age]
        queue = [group for group in old if group not in stale]
        queue += self._drawn(draws, texts, sampling, rng, step)
        target = sum(not draw.columns.get("spare_B") for draw in draws)
        complete, lost = await generate(engine, queue, lambda group: group.complete, target)
        lost += sum(group.cut() for group in complete)
        taken = [group for group in queue if group in complete[:target]]
        left = [group for group in queue if group not in taken]
        metrics = {
            "partial/groups_left": float(len(left)),
            "partial/tokens_left": float(sum(group.length for group in left)),
            "partial/given_up": len(stale),
            TOKENS_DISCARDED: lost + sum(group.length for group in stale),
        }
        saved = tuple({**put_off(group, step + 1), "made": group.made} for group in left)
        return batch_of(taken), {"groups": saved, "step": step + 1}, metrics

    def _drawn(
        self, draws: Sequence[Draw], texts: Texts, sampling: Sampling, rng: torch.Generator,
        step: int,
    ) -> list[Queued]:  # fmt: skip
        """The step's own prompts, with their spare answers."""
        more = [draw._replace(num_rollouts=draw.num_rollouts + self.spare) for draw in draws]
        rows = iter(self.requests(more, texts, sampling, rng))
        return [
            Queued(draw, [Answer(next(rows), ()) for _ in range(asked.num_rollouts)], made=step)
            for draw, asked in zip(draws, more, strict=True)
        ]
