"""Answers that a step leaves unfinished, and their form in a checkpoint."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from strop.batch.batch import Batch, level_of
from strop.engines.base import Event, Request
from strop.method.part import Draw
from strop.method.services import Texts
from strop.parts.rollout.assemble import assemble

Saved = dict[str, Any]
APART = 1 << 20  # more draws of a prompt than a step has: groups put off stay groups of their own


@dataclass(eq=False)
class Answer:
    """An answer on its way: asked for whole, its events of all steps so far."""

    request: Request
    events: list[Event] = field(default_factory=list)
    before: int = 0  # events of earlier steps

    @property
    def ended(self) -> bool:
        return bool(self.events) and self.events[-1].ended in ("stop", "length", "failed")

    @property
    def length(self) -> int:
        return sum(len(event.ids) for event in self.events)

    def rest(self) -> Request:
        """What is still to be drawn of it, after its prompt and all that it has."""
        ids = [id for event in self.events for id in event.ids]
        left = self.request.max_tokens - len(ids)
        return replace(self.request, ids=(*self.request.ids, *ids), max_tokens=left)


@dataclass(eq=False)
class Group:
    """All answers of a draw."""

    draw: Draw
    answers: list[Answer]

    @property
    def ended(self) -> bool:
        return all(answer.ended for answer in self.answers)

    @property
    def length(self) -> int:
        return sum(answer.length for answer in self.answers)

    def versions(self) -> Iterator[int]:
        """Of the weights that drew its tokens."""
        return (e.version for answer in self.answers for e in answer.events if e.ids)


def put_off(group: Group, phase: int) -> Saved:
    """A group for a checkpoint, numbers alone; phase: how often its strategy has run by now."""
    draw = group.draw
    number = draw.draw if draw.draw >= APART else draw.draw + phase * APART
    answers = tuple(
        (answer.request.seed, tuple(_numbers(event) for event in answer.events))
        for answer in group.answers
    )
    return {"draw": (draw.uid, draw.num_rollouts, dict(draw.columns), number), "answers": answers}


def opened(saved: Saved, texts: Texts, ask: Callable[[tuple[int, ...], int], Request]) -> Group:
    """A group that was put off; ask: (ids of its prompt, seed) -> the request of a whole answer."""
    draw = Draw(*saved["draw"])
    ids = draw.columns.get("prompt_ids") or texts.prompt_ids(draw.uid)
    answers = []
    for seed, events in saved["answers"]:
        told = [_event(*each) for each in events]
        answers.append(Answer(ask(ids, seed), told, len(told)))
    return Group(draw, answers)


def batch_of(taken: Sequence[Group]) -> Batch:
    """The groups' rollouts, with what the samplers once said of them."""
    draws = [group.draw for group in taken]
    answers = [answer for group in taken for answer in group.answers]
    batch = assemble(
        draws, [answer.request for answer in answers], [answer.events for answer in answers]
    )
    said: Mapping[str, Any] = {
        name: torch.tensor([draw.columns.get(name, float("nan")) for draw in draws])
        for name in sorted({name for draw in draws for name in draw.columns})
        if level_of(name) == "B"
    }
    return batch.set(**{name: each[batch["group_B"]] for name, each in said.items()})


def _numbers(event: Event) -> tuple[Any, ...]:
    told = [event.logp, event.told("logp_model"), event.told("entropy")]
    return (
        torch.tensor(event.ids, dtype=torch.int64),
        torch.tensor(told, dtype=torch.float64),
        event.version,
        event.ended,
    )


def _event(ids: Any, told: Any, version: int, ended: Any) -> Event:
    logp, logp_model, entropy = (tuple(row) for row in told.tolist())
    return Event(0, tuple(ids.tolist()), logp, version, logp_model, entropy, ended=ended)
