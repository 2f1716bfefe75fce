"""Let each drawn prompt be followed by similar ones in the same rollout."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from strop.method.part import Draw, require
from strop.method.services import Texts
from strop.support.errors import UserError


@dataclass(frozen=True)
class ChainSimilarPrompts:
    """What is learnt on one prompt can prove useful on the next.

        chain of a draw: length - 1 other prompts of its scenario, at random, each once

    It follows a part that draws prompts, and needs a rollout part that answers chains.

    Reads: draws, pool; texts (the rows of the data); rng.   Writes: draws, which carry `chain`.
    Source: arXiv 2512.17102 (sequential rollout over a chain of similar tasks).
    Differs from the source: no.
    Nearest part: add_paraphrases, whose prompts are drawn in addition.
    Edges: a scenario with too few prompts -> a shorter chain; data without the column -> UserError.
    """

    carries: ClassVar[tuple[str, ...]] = ("chain",)
    # Column of the data, equal in similar prompts; "": all are similar. Default: ours.
    column: str = ""
    # Prompts of a chain, the drawn one included. Default: paper (2).
    length: int = 2

    def __post_init__(self) -> None:
        require(self, "length", low=1)

    def __call__(
        self, draws: tuple[Draw, ...], pool: tuple[int, ...], texts: Texts, rng: torch.Generator
    ) -> tuple[Draw, ...]:
        names = dict(zip(pool, self._scenarios(texts, pool), strict=True))
        similar: dict[str, list[int]] = {}
        for uid, name in names.items():
            similar.setdefault(name, []).append(uid)
        found = []
        for draw in draws:
            own = similar[names[draw.uid]]
            place = own.index(draw.uid)  # which the rows of others pass over
            rows = torch.randperm(len(own) - 1, generator=rng)[: self.length - 1].tolist()
            chain = tuple(own[row + (row >= place)] for row in rows)
            found.append(draw._replace(columns={**draw.columns, "chain": chain}))
        return tuple(found)

    def _scenarios(self, texts: Texts, pool: Sequence[int]) -> list[str]:
        """The scenarios of the prompts. Raises UserError when the row of one names none."""
        if not self.column:
            return [""] * len(pool)
        values = texts.values(self.column, pool)
        if None in values:
            raise UserError(
                f"a prompt of the training data has no {self.column}: give every row a column "
                f"{self.column!r} that is equal in similar prompts, or set sampling.column='' "
                "if all are similar"
            )
        return list(map(str, values))
