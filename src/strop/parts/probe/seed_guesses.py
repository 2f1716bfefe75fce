"""Give every token a seed for what a loss draws there."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch.columns import Column


@dataclass(frozen=True)
class SeedGuesses:
    """What a loss draws at a token is fixed by the token's seed, not by how rows are split.

        guess_seed_t uniform over the integers of 62 bits

    Reads: mask_T [T] bool; rng.   Writes: guess_seed_T [T] int.
    Source: none; it is how draws inside a loss are the same for all sizes of micro-batches.
    Differs from the source: no.
    Nearest part: none.
    Edges: none; no state lasts between steps.
    """

    writes: ClassVar[tuple[str, ...]] = ("guess_seed_T",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "guess_seed_T", "int", "seed of the token's own draws", random="key:4611686018427387904"
        ),
    )

    def __call__(self, mask_T: Tensor, rng: torch.Generator) -> Tensor:
        return torch.randint(2**62, mask_T.shape, generator=rng).to(mask_T.device)
