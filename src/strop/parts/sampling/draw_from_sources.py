"""Draw prompts from several sources by weight, each in an order of its own."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from strop.method.part import Draw, Result
from strop.method.services import Texts
from strop.parts.sampling._chosen import check_size
from strop.support.errors import UserError


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
    Edges: one source, or none that is named -> all prompts are one; the state (order, cursor and
    epoch of each) is in the checkpoint, so a restart loses nothing.
    """

    # Prompts a step. Default: ours (the shipped model on a CPU).
    num_prompts: int = 32
    # Rollouts of each prompt. Default: ours (the shipped model on a CPU).
    num_rollouts: int = 16

    def __post_init__(self) -> None:
        check_size(self)

    def init(self) -> dict[str, Any]:
        """No epoch begun, of no source."""
        return {"order": (), "cursor": (), "epoch": ()}

    def __call__(
        self,
        pool: tuple[int, ...],
        texts: Texts,
        state: dict[str, Any],
        rng: torch.Generator,
        num_wanted: int | None = None,
    ) -> Result:
        sources = texts.mixture or (("all", pool[-1] + 1 if pool else 0, 1.0),)
        ends = [bisect_left(pool, end) for _, end, _ in sources]
        begins = [0, *ends[:-1]]
        _check(sources, begins, ends)
        num = len(sources)
        order = list(state["order"] or (torch.zeros(0, dtype=torch.int64),) * num)
        cursor, epoch = list(state["cursor"] or (0,) * num), list(state["epoch"] or (-1,) * num)
        draws = []
        for at in self._chosen([weight for *_, weight in sources], num_wanted, rng):
            if cursor[at] >= len(order[at]):
                order[at] = torch.randperm(ends[at] - begins[at], generator=rng)
                cursor[at], epoch[at] = 0, epoch[at] + 1
            row = begins[at] + order[at][cursor[at]].item()
            draws.append(Draw(pool[row], self.num_rollouts))
            cursor[at] += 1
        sizes = [end - begin for begin, end in zip(begins, ends, strict=True)]
        drawn = [max(e, 0) * size + c for e, size, c in zip(epoch, sizes, cursor, strict=True)]
        found = {
            f"sources/{name}/epoch": count / size
            for (name, *_), count, size in zip(sources, drawn, sizes, strict=True)
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


def _check(sources: Sequence[tuple[str, int, float]], begins: list[int], ends: list[int]) -> None:
    """Raise UserError for a source without a prompt."""
    for (name, *_), begin, end in zip(sources, begins, ends, strict=True):
        if begin == end:
            raise UserError(
                f"no training prompt of the source {name} is left: give more rows, or leave it out"
            )
