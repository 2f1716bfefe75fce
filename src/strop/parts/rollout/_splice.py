"""Joins the beginning of a failed answer to another end."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strop.batch.batch import Batch
from strop.batch.columns import DEMONSTRATION
from strop.engines.base import Answer, Event, Request
from strop.method.part import Draw
from strop.method.services import Grading
from strop.parts.rollout.base import assemble

SUCCESS = 1.0  # outcome from which an answer is right


@dataclass
class Failed:
    """A failed rollout: its prompt, its tokens before the false step, and their number of steps."""

    row: int
    draw: Draw
    steps: int
    events: tuple[Event, ...]

    @property
    def size(self) -> int:
        return sum(len(event.ids) for event in self.events)


@dataclass
class Repair:
    """Another end for a failed rollout."""

    failed: Failed
    request: Request  # of the whole answer, with the end's own seed
    end: Sequence[Event] = ()

    @property
    def whole(self) -> Answer:
        return Answer(self.request, (*self.failed.events, *self.end))

    def rest(self) -> Request:
        """The request for the rest after the kept tokens."""
        return Answer(self.request, self.failed.events).more()


def graded_right(repairs: Sequence[Repair], grading: Grading) -> list[Repair]:
    """Selects the answers that are graded right."""
    if not repairs:
        return []
    draws = [
        repair.failed.draw._replace(num_rollouts=1, draw=n) for n, repair in enumerate(repairs)
    ]
    graded = grading.grade(marked(assemble(draws, [repair.whole for repair in repairs])))
    pairs = zip(repairs, graded.outcome_B.tolist(), strict=True)
    return [repair for repair, outcome in pairs if outcome >= SUCCESS]


def marked(batch: Batch) -> Batch:
    """The batch with the tokens that no engine drew marked as given."""
    given_T = batch["mask_T"] & (batch["version_T"] < 0)
    return batch.set(origin_T=torch.where(given_T, DEMONSTRATION, batch["origin_T"]))
