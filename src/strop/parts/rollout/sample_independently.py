"""Answer every drawn prompt several times, each answer on its own."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from strop.engines.asynchronous import AsyncEngine
from strop.method.part import Draw
from strop.method.services import Sampling, Texts
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields, assemble


@dataclass(frozen=True)
class SampleIndependently(SamplingFields):
    """The policy learns from plain samples of itself: no answer depends on another.

        token ~ softmax(logits / temperature), cut by top_k, then top_p, then min_p

    Reads: draws.   Writes: the token, turn, rollout and prompt tables.
    Source: arXiv 2402.03300, algorithm 1 (line 6).
    Differs from the source: no.
    Nearest part: none.
    Edges: an answer cut off by max_tokens or the context is marked truncated; nothing lasts
    between steps, so a restart loses nothing.
    """

    writes: ClassVar[tuple[str, ...]] = COLUMNS
    by_draw: ClassVar[bool] = True

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        requests = self.requests(draws, texts, sampling, rng)
        return assemble(draws, await engine.generate_all(requests)), None
