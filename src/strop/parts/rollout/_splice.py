"""A failed answer's beginning with another end behind it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from strop.batch.batch import Batch
from strop.engines.base import Event, Request
from strop.method.part import Draw
from strop.parts.rollout.assemble import assemble
from strop.parts.rollout.commands import Reward, Strategy

DEMONSTRATION = 2  # origin_T
SUCCESS = 1.0  # outcome from which an answer is right


@dataclass
class Failed:
    """A failed rollout, its prompt, and its tokens and number of steps before the false one."""

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
    def events(self) -> tuple[Event, ...]:
        return (*self.failed.events, *self.end)

    def rest(self) -> Request:
        """What is to be drawn behind what was kept."""
        ids = [id for event in self.failed.events for id in event.ids]
        left = self.request.max_tokens - len(ids)
        return replace(self.request, ids=(*self.request.ids, *ids), max_tokens=left)


def graded_right(repairs: Sequence[Repair]) -> Strategy:
    """Those of these that are graded right."""
    if not repairs:
        return []
    whole = assemble(
        [repair.failed.draw._replace(num_rollouts=1, draw=n) for n, repair in enumerate(repairs)],
        [repair.request for repair in repairs],
        [repair.events for repair in repairs],
    )
    outcomes, _ = yield [Reward(marked(whole))]
    pairs = zip(repairs, outcomes[0].tolist(), strict=True)
    return [repair for repair, outcome in pairs if outcome >= SUCCESS]


def marked(batch: Batch) -> Batch:
    """The batch with the tokens that no engine drew marked as given."""
    given_T = batch["mask_T"] & (batch["version_T"] < 0)
    return batch.set(origin_T=torch.where(given_T, DEMONSTRATION, batch["origin_T"]))
