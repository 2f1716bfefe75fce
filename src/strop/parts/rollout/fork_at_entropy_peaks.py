"""Answer a prompt several times, and each answer again from where it was least sure of itself."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from strop.engines.base import Event, Request
from strop.method.part import Draw, require
from strop.method.services import Sampling, Texts
from strop.parts.rollout.assemble import COLUMNS, assemble
from strop.parts.rollout.base import SamplingFields
from strop.parts.rollout.commands import Fork, Strategy, Submit
from strop.parts.rollout.listen import Heard, first_tokens, hear


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
        require(self, "num_places", low=0)
        require(self, "num_branches", low=0)

    @property
    def needs(self) -> frozenset[str]:
        """Answers go on from others, where the engine tells the largest entropy."""
        forks = self.num_places and self.num_branches
        return super().needs | (frozenset({"fork", "entropy"}) if forks else frozenset())

    def __call__(
        self, draws: tuple[Draw, ...], texts: Texts, sampling: Sampling, rng: torch.Generator
    ) -> Strategy:
        asked = self.requests(draws, texts, sampling, rng)
        if self.num_places and self.num_branches:
            asked = [replace(r, want=r.want | {"entropy"}, keep=True) for r in asked]
        trunks: list[Heard] = yield from hear([Submit(request) for request in asked])
        places = [self._places(trunk.events) for trunk in trunks]
        owner = [row for row, found in enumerate(places) for _ in found]
        fork_at = [place for found in places for place in found]
        seeds = torch.randint(2**62, (len(owner),), generator=rng).tolist() if owner else []
        branches: list[Heard] = []
        if owner:
            pairs = zip(owner, fork_at, seeds, strict=True)
            branches = yield from hear(
                [Fork(trunks[row].number, len(asked[row].ids) + place, changes={"seed": seed})
                 for row, place, seed in pairs]
            )  # fmt: skip
        requests: list[Request] = []
        heard: list[tuple[Event, ...]] = []
        parents, forks = [], []
        ends = iter(zip(seeds, branches, strict=True))
        for request, trunk, found in zip(asked, trunks, places, strict=True):
            own = len(requests)
            requests.append(request)
            heard.append(tuple(trunk.events))
            for place in found:
                seed, branch = next(ends)
                requests.append(replace(request, seed=seed))
                heard.append((*first_tokens(trunk.events, place), *branch.events))
            parents += [-1] + [own] * len(found)
            forks += [-1, *found]
        batch = assemble(_widened(draws, places), requests, heard).set(
            parent_B=torch.tensor(parents, dtype=torch.int64),
            fork_at_B=torch.tensor(forks, dtype=torch.int64),
        )
        return batch, None, {"rollout/tokens_shared": sum(fork_at)}

    def _places(self, events: Sequence[Event]) -> list[int]:
        """Where a trunk's branches begin, one entry a branch."""
        entropy = [value for event in events for value in event.entropy]
        ranked = sorted(range(len(entropy)), key=lambda place: -entropy[place])
        return [p for p in ranked[: self.num_places] for _ in range(self.num_branches)]


def _widened(draws: Sequence[Draw], places: Sequence[Sequence[int]]) -> list[Draw]:
    """The draws with the number of their trunks and branches."""
    found, row = [], 0
    for draw in draws:
        own = places[row : row + draw.num_rollouts]
        row += draw.num_rollouts
        found.append(draw._replace(num_rollouts=sum(1 + len(each) for each in own)))
    return found
