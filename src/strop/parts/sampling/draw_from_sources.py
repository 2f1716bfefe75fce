"""Draw prompts from several sources by weight, each in an order of its own."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from strop.method.part import Draw, Result, require
from strop.method.services import Texts
from strop.support.errors import UserError


class Source(NamedTuple):
    """A source of the data: its prompts are `size` ones of the pool from index `begin` on."""

    name: str
    weight: float
    begin: int
    size: int


@dataclass(frozen=True)
class DrawFromSources:
    """Sources of the data are practised as often as their weights say, not as their sizes.

        each draw: source k with P = weight_k / sum weight, then the next prompt of a permutation
        of its prompts; a new permutation when that ends

    Metrics: sources/{name}/epoch (passes through each), data/epoch (draws so far / prompts).

    Reads: pool (uids of the training prompts), texts.   Writes: draws.
    Source: none; mixtures of data sets by weight.
    Differs from the source: no.
    Nearest part: draw_in_shuffled_order; equal to it with one source.
    Edges: one source, or none named -> all prompts form one; the state (order, cursor and
    epoch of each) is in the checkpoint, so a restart loses nothing.
    """

    # Prompts a step. Default: ours (the shipped model on a CPU).
    num_prompts: int = 32
    # Rollouts of each prompt. Default: ours (the shipped model on a CPU).
    num_rollouts: int = 16

    def __post_init__(self) -> None:
        require(self, "num_prompts", "num_rollouts", low=1)

    def init(self) -> dict[str, Any]:
        """The initial state: no source has started an epoch."""
        return {"order": (), "cursor": (), "epoch": ()}

    def __call__(
        self,
        pool: tuple[int, ...],
        texts: Texts,
        state: dict[str, Any],
        rng: torch.Generator,
        num_wanted: int | None = None,
    ) -> Result:
        sources = sources_of(pool, texts)
        return self.drawn(pool, sources, [s.weight for s in sources], state, rng, num_wanted)

    def drawn(
        self,
        pool: tuple[int, ...],
        sources: Sequence[Source],
        weights: list[float],
        state: dict[str, Any],
        rng: torch.Generator,
        num_wanted: int | None,
    ) -> Result:
        """Draws of a step, by weights of the sources."""
        num = len(sources)
        order = list(state["order"] or (torch.zeros(0, dtype=torch.int64),) * num)
        cursor, epoch = list(state["cursor"] or (0,) * num), list(state["epoch"] or (-1,) * num)
        draws = []
        for at in self._chosen(weights, num_wanted, rng):
            if cursor[at] >= len(order[at]):
                order[at] = torch.randperm(sources[at].size, generator=rng)
                cursor[at], epoch[at] = 0, epoch[at] + 1
            row = sources[at].begin + order[at][cursor[at]].item()
            chance = weights[at] / sum(weights) / sources[at].size
            draws.append(Draw(pool[row], self.num_rollouts, probability=chance))
            cursor[at] += 1
        drawn = [max(e, 0) * s.size + c for e, s, c in zip(epoch, sources, cursor, strict=True)]
        found = {
            f"sources/{source.name}/epoch": count / source.size
            for source, count in zip(sources, drawn, strict=True)
        }
        new = {"order": tuple(order), "cursor": tuple(cursor), "epoch": tuple(epoch)}
        return Result(tuple(draws), new, {**found, "data/epoch": sum(drawn) / len(pool)})

    def _chosen(
        self, weights: list[float], num_wanted: int | None, rng: torch.Generator
    ) -> list[int]:
        """The source of each draw."""
        wanted = self.num_prompts if num_wanted is None else num_wanted
        if len(weights) == 1:
            return [0] * wanted
        share = torch.tensor(weights, dtype=torch.float64)
        return torch.multinomial(share, wanted, replacement=True, generator=rng).tolist()


def sources_of(pool: tuple[int, ...], texts: Texts) -> list[Source]:
    """The sources of the data, or all prompts as one. Raises UserError for one without a prompt."""
    mixture = texts.mixture or (("all", pool[-1] + 1 if pool else 0, 1.0),)
    ends = [bisect_left(pool, end) for _, end, _ in mixture]
    found = [
        Source(name, weight, begin, end - begin)
        for (name, _, weight), begin, end in zip(mixture, [0, *ends[:-1]], ends, strict=True)
    ]
    for source in found:
        if not source.size:
            raise UserError(
                f"no training prompt of the source {source.name} is left: give more rows, or leave "
                "it out"
            )
    return found
