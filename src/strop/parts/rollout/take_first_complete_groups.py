"""A queue of prompts: a step takes those that are answered first, and none that waits too long."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch

from strop.engines.base import Event, Finished
from strop.method.part import Draw, require
from strop.method.services import Sampling, Texts
from strop.parts.rollout._unfinished import Answer, Group, Saved, batch_of, opened, put_off
from strop.parts.rollout.assemble import COLUMNS
from strop.parts.rollout.base import SamplingFields
from strop.parts.rollout.commands import THROWN_AWAY, Abort, Strategy, Submit


@dataclass(eq=False)
class Queued(Group):
    """A prompt in the queue. made: the step that drew it; first: its answers as they ended."""

    made: int = 0
    first: list[Answer] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether as many answers have ended as were drawn."""
        return len(self.first) >= self.draw.num_rollouts


@dataclass(frozen=True)
class TakeFirstCompleteGroups(SamplingFields):
    """A step trains on the prompts that are answered first, out of those of the last steps.

        queue: what is left of earlier steps, oldest first, and all draws of this step
        of each prompt num_rollouts + spare answers are drawn; it is complete with num_rollouts,
        those that ended first; its other answers are broken off
        stop when as many are complete as there are draws that are not spare (spare_B)
        leave out what was drawn more than max_age steps ago

    What is not complete goes on in the next step, with the weights of then, from the tokens that it
    has. Metrics: partial/groups_left, /tokens_left (in the queue), /given_up (too old).

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
    ends_others: ClassVar[bool] = True
    # Steps after which a prompt leaves the queue. Default: released code (0, synchronous).
    max_age: int = 0
    # Answers of each prompt drawn beyond those that are needed. Default: released code (0).
    spare: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "max_age", low=0)
        require(self, "spare", low=0)

    def init(self) -> Saved:
        """An empty queue."""
        return {"groups": (), "step": 0}

    def __call__(
        self, draws: tuple[Draw, ...], texts: Texts, sampling: Sampling, rng: torch.Generator,
        state: Saved,
    ) -> Strategy:  # fmt: skip
        step = state["step"]
        ask = partial(self.request, sampling)  # with the options of now
        before = [(saved["made"], opened(saved, texts, ask)) for saved in state["groups"]]
        old = [_queued(group, made) for made, group in before]
        stale = [group for group in old if step - group.made > self.max_age]
        queue = [group for group in old if group not in stale]
        queue += self._drawn(draws, texts, sampling, rng, step)
        target = sum(not draw.columns.get("spare_B") for draw in draws)
        complete, lost = yield from _generate(queue, target)
        for group in complete:
            group.answers = [
                a for a in group.answers if a in group.first[: group.draw.num_rollouts]
            ]
        taken = [group for group in queue if group in complete[:target]]
        left = [group for group in queue if group not in taken]
        metrics = {
            "partial/groups_left": float(len(left)),
            "partial/tokens_left": float(sum(group.length for group in left)),
            "partial/given_up": len(stale),
            THROWN_AWAY: lost + sum(group.length for group in stale),
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
            Queued(draw, [Answer(next(rows)) for _ in range(asked.num_rollouts)], step)
            for draw, asked in zip(draws, more, strict=True)
        ]


def _queued(group: Group, made: int) -> Queued:
    ended = [answer for answer in group.answers if answer.ended]
    return Queued(group.draw, group.answers, made, ended)


def _generate(queue: Sequence[Queued], target: int) -> Strategy:
    """Draws tokens until `target` groups are complete: those, in the order of their ends, and the
    tokens of answers that none of them needs. The others get what was drawn of them too.
    """
    complete = [group for group in queue if group.complete]
    places = [(g, a) for g in queue if not g.complete for a in g.answers if not a.ended]
    running: dict[int, tuple[Queued, Answer]] = {}
    lost = 0
    if places and len(complete) < target:
        numbers, events = yield [Submit(answer.rest()) for _, answer in places]
        running = dict(zip(numbers, places, strict=True))
        while True:
            _hear(events, running)
            new = [group for group in queue if group.complete and group not in complete]
            complete += new
            if len(complete) >= target:
                break
            needless = [number for number, (group, _) in running.items() if group in new]
            stopped, events = yield [Abort(number) for number in needless]
            for number, finished in zip(needless, stopped, strict=True):
                lost += _tokens(running.pop(number)[1], finished)
    if running:
        stopped, _ = yield [Abort(number) for number in running]
        for (group, answer), finished in zip(running.values(), stopped, strict=True):
            if group.complete:
                lost += _tokens(answer, finished)
            drawn = [event._replace(ended="") for event in finished.events if event.ids]
            answer.events = [*answer.events[: answer.before], *drawn]
    spared = [a for g in complete for a in g.first[g.draw.num_rollouts :]]
    return complete, lost + sum(answer.length for answer in spared)


def _hear(events: Sequence[Event], running: dict[int, tuple[Queued, Answer]]) -> None:
    """Give events to their answers; those that end in one step of the engine count as begun."""
    for event in events:
        running[event.request][1].events.append(event)
    for number in [number for number, (_, answer) in running.items() if answer.ended]:
        group, answer = running.pop(number)
        group.first.append(answer)


def _tokens(answer: Answer, finished: Finished) -> int:
    """Tokens of an answer that was broken off, those of earlier steps too."""
    earlier = sum(len(event.ids) for event in answer.events[: answer.before])
    return earlier + sum(len(event.ids) for event in finished.events)
