"""Answer a prompt several times, and each answer again from where it was least sure of itself."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from strop.engines.asynchronous import AsyncEngine
from strop.engines.base import Answer, Event
from strop.method.part import Draw, require
from strop.method.services import Sampling, Texts
from strop.parts.rollout._rows import rows_by_draw, with_parents
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields, assemble


@dataclass(frozen=True)
class ForkAtEntropyPeaks(SamplingFields):
    """A group has answers that share all but their ends, and costs little more than its trunks.

        trunks: the draw's rollouts, plain answers
        H_t: entropy, nats, of the distribution at `temperature` that token t of a trunk is from
        branches: at each of the num_places largest H_t of a trunk num_branches new answers that
        keep the tokens before t and are drawn from t on

    A draw of M rollouts becomes a group of M (1 + num_places num_branches): each trunk, then its
    branches, the largest entropy first; of equal ones the earlier place. Metric:
    rollout/tokens_shared.

    Reads: draws.   Writes: the token, turn, rollout and prompt tables; fork_at_B counts the
    answer's tokens.
    Source: arXiv 2508.11356 (entropy-fork tree majority rollout).
    Differs from the source: it does not say whether the forked token may come again (here it may)
    nor how far forks lie apart (here anywhere).
    Nearest part: branch_at_uncertainty; sample_independently where either number is 0.
    Edges: a trunk of fewer tokens forks at each of them; two rounds of generation. Stateless.
    """

    writes: ClassVar[tuple[str, ...]] = COLUMNS
    # Places of a trunk where it forks. Default: paper (2).
    num_places: int = 2
    # New answers at each of them. Default: paper (2).
    num_branches: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "num_places", "num_branches", low=0)

    @property
    def needs(self) -> frozenset[str]:
        """Answers continue others from where the engine reports the largest entropy."""
        forks = self.num_places and self.num_branches
        return super().needs | (frozenset({"entropy"}) if forks else frozenset())

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        asked = self.requests(draws, texts, sampling, rng)
        if self.num_places and self.num_branches:
            asked = [replace(r, want=r.want | {"entropy"}, keep=True) for r in asked]
        trunks = await engine.generate_all(asked)
        places = [self._places(trunk.events) for trunk in trunks]
        owner = [row for row, found in enumerate(places) for _ in found]
        fork_at = [place for found in places for place in found]
        seeds = torch.randint(2**62, (len(owner),), generator=rng).tolist() if owner else []
        started = [
            Answer(replace(asked[row], seed=seed, keep=False), trunks[row].first(place).events)
            for row, place, seed in zip(owner, fork_at, seeds, strict=True)
        ]
        drawn = await engine.generate_all([each.more() for each in started])
        ends = iter(zip(started, drawn, strict=True))
        answers: list[Answer] = []
        parents, forks = [], []
        for trunk, found in zip(trunks, places, strict=True):
            own = len(answers)
            answers += [trunk, *(each + end for each, end in (next(ends) for _ in found))]
            parents += [-1] + [own] * len(found)
            forks += [-1, *found]
        batch = assemble(_widened(draws, places), answers)
        return with_parents(batch, parents, forks), None, {"rollout/tokens_shared": sum(fork_at)}

    def _places(self, events: Sequence[Event]) -> list[int]:
        """Where a trunk's branches begin, one entry a branch."""
        entropy = [value for event in events for value in event.entropy]
        ranked = sorted(range(len(entropy)), key=lambda place: -entropy[place])
        return [p for p in ranked[: self.num_places] for _ in range(self.num_branches)]


def _widened(draws: Sequence[Draw], places: Sequence[Sequence[int]]) -> list[Draw]:
    """The draws with the number of their trunks and branches together."""
    return [
        draw._replace(num_rollouts=sum(1 + len(places[row]) for row in rows))
        for draw, rows in rows_by_draw(draws)
    ]
