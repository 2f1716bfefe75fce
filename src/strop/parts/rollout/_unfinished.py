"""Answers that a step leaves unfinished, and their form in a checkpoint."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from strop.batch.batch import Batch, level_of
from strop.engines.asynchronous import AsyncEngine, PendingRequest
from strop.engines.base import Answer, Event, Request
from strop.method.part import EARLIER, Draw
from strop.method.services import Texts
from strop.parts.rollout.base import assemble

Saved = dict[str, Any]


@dataclass(eq=False)
class Group:
    """All answers of a draw, each requested as a whole, with its events of all steps so far.

    first: indices of answers, in the order in which they ended.
    """

    draw: Draw
    answers: list[Answer]
    first: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.first = [place for place, answer in enumerate(self.answers) if answer.ended]

    @property
    def ended(self) -> bool:
        return len(self.first) == len(self.answers)

    @property
    def length(self) -> int:
        return sum(len(answer.ids) for answer in self.answers)

    def open(self) -> Iterator[tuple[int, Request]]:
        """The unfinished answers: their indices, and the requests for the rest of each."""
        for place, answer in enumerate(self.answers):
            if not answer.ended:
                yield place, answer.more()

    def versions(self) -> Iterator[int]:
        """Of the weights that drew its tokens."""
        return (e.version for answer in self.answers for e in answer.events if e.ids)


def new_groups(draws: Sequence[Draw], requests: Sequence[Request]) -> list[Group]:
    """A group for each draw, of which nothing is drawn yet; requests: one a rollout, in order."""
    rows = iter(requests)
    return [Group(draw, [Answer(next(rows), ()) for _ in range(draw.num_rollouts)])
            for draw in draws]  # fmt: skip


AnyGroup = TypeVar("AnyGroup", bound=Group)


async def generate(
    engine: AsyncEngine,
    groups: Sequence[AnyGroup],
    is_complete: Callable[[AnyGroup], bool],
    target: int,
) -> tuple[list[AnyGroup], int]:
    """Draw until `target` groups are complete. Returns these, in the order of completion, and the
    number of tokens in answers that none of them needs. The others keep what was drawn of them.

    Groups that end in one step of the engine are ordered as they were given.
    """
    complete = [group for group in groups if is_complete(group)]
    running: dict[PendingRequest, tuple[AnyGroup, int]] = {}
    if len(complete) < target:
        running = {
            engine.begin(request): (group, place)
            for group in groups
            if not is_complete(group)
            for place, request in group.open()
        }
    lost = 0
    while running and len(complete) < target:
        longer = set[AnyGroup]()
        for pending in await engine.some(list(running)):
            group, place = running.pop(pending)
            group.answers[place] = joined(group.answers[place], pending.answer())
            group.first.append(place)
            longer.add(group)
        new = [group for group in groups if group in longer and is_complete(group)]
        complete += new
        for pending in [each for each, (group, _) in running.items() if group in new]:
            group, place = running.pop(pending)
            lost += len(group.answers[place].ids) + len(pending.stop().ids)
    for pending, (group, place) in running.items():
        drawn = pending.stop()
        if is_complete(group):
            lost += len(group.answers[place].ids) + len(drawn.ids)
        group.answers[place] = joined(group.answers[place], drawn.first(len(drawn.ids)))
    return complete, lost


def joined(answer: Answer, more: Answer) -> Answer:
    """An answer extended by what was drawn after it; its request is for the whole."""
    return Answer(answer.request, answer.events + more.events)


def put_off(group: Group, phase: int) -> Saved:
    """A group as numbers for a checkpoint; phase: how often its strategy has run so far."""
    draw = group.draw
    number = draw.draw if draw.draw >= EARLIER else draw.draw + phase * EARLIER
    answers = tuple(
        (answer.request.seed, tuple(_numbers(event) for event in answer.events))
        for answer in group.answers
    )
    return {"draw": (draw.uid, draw.num_rollouts, dict(draw.columns), number), "answers": answers}


def opened(saved: Saved, texts: Texts, ask: Callable[[tuple[int, ...], int], Request]) -> Group:
    """Restores a group that was put off.

    ask: (ids of its prompt, seed) -> the request of a whole answer.
    """
    draw = Draw(*saved["draw"])
    ids = draw.columns.get("prompt_ids") or texts.prompt_ids(draw.uid)
    answers = []
    for seed, events in saved["answers"]:
        answers.append(Answer(ask(ids, seed), tuple(_event(*each) for each in events)))
    return Group(draw, answers)


def batch_of(taken: Sequence[Group]) -> Batch:
    """The groups' rollouts, with the statistics of the samplers that drew them."""
    draws = [group.draw for group in taken]
    batch = assemble(draws, [answer for group in taken for answer in group.answers])
    columns: Mapping[str, Any] = {
        name: torch.tensor([draw.columns.get(name, float("nan")) for draw in draws])
        for name in sorted({name for draw in draws for name in draw.columns})
        if level_of(name) == "B"
    }
    return batch.set(**{name: each[batch["group_B"]] for name, each in columns.items()})


def _numbers(event: Event) -> tuple[Any, ...]:
    rows = [event.logp, event.values_of("logp_model"), event.values_of("entropy")]
    return (
        torch.tensor(event.ids, dtype=torch.int64),
        torch.tensor(rows, dtype=torch.float64),
        event.version,
        event.ended,
        tuple(torch.frombuffer(bytearray(ids), dtype=torch.int32) if ids else torch.empty(0)
              for ids in event.kept),
    )  # fmt: skip


def _event(ids: Any, numbers: Any, version: int, ended: Any, kept: Sequence[Any] = ()) -> Event:
    logp, logp_model, entropy = (tuple(row) for row in numbers.tolist())
    sets = tuple(each.numpy().tobytes() for each in kept)
    return Event(0, tuple(ids.tolist()), logp, version, logp_model, entropy, ended=ended, kept=sets)
