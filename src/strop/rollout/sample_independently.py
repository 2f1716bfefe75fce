"""Answer every drawn prompt several times, each answer on its own."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from strop.part import Draw, require
from strop.rollout.assemble import COLUMNS, assemble
from strop.rollout.commands import Strategy
from strop.rollout.engines.base import Request
from strop.rollout.engines.rules import MinP, TopK, TopP
from strop.rollout.listen import listen


@dataclass(frozen=True)
class SampleIndependently:
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
    # Most new tokens; 0: the task's own limit. Default: ours (tasks know their answers' length).
    max_tokens: int = 0
    # Of the softmax; the trainer takes all log-probabilities at it. Default: paper (1.0).
    temperature: float = 1.0
    # Smallest set of likeliest tokens with at least this mass; 1: all. Default: ours (off).
    top_p: float = 1.0
    # Number of likeliest tokens kept; 0: all. Default: ours (off).
    top_k: int = 0
    # Tokens below this share of the likeliest token's probability are cut. Default: ours (off).
    min_p: float = 0.0

    def __post_init__(self) -> None:
        require(self, "max_tokens", low=0)
        require(self, "temperature", low=1e-3)
        require(self, "top_p", low=1e-6, high=1.0)
        require(self, "top_k", low=0)
        require(self, "min_p", low=0.0, high=1.0)

    def rules(self) -> tuple[Any, ...]:
        """The cuts on the logits that differ from their defaults."""
        found: list[Any] = [TopK(self.top_k)] if self.top_k else []
        found += [TopP(self.top_p)] if self.top_p < 1 else []
        return (*found, *([MinP(self.min_p)] if self.min_p else []))

    def __call__(self, draws: tuple[Draw, ...], services: Any, rng: torch.Generator) -> Strategy:
        requests = self.requests(draws, services, rng)
        heard = yield from listen(requests)
        return assemble(draws, requests, heard), None

    def requests(
        self, draws: tuple[Draw, ...], services: Any, rng: torch.Generator
    ) -> list[Request]:
        """One request a rollout, in the order of the draws, each with its own seed."""
        total = sum(draw.num_rollouts for draw in draws)
        seeds = iter(torch.randint(2**62, (total,), generator=rng).tolist())
        return [
            self._request(services, draw, next(seeds))
            for draw in draws
            for _ in range(draw.num_rollouts)
        ]

    def _request(self, services: Any, draw: Draw, seed: int) -> Request:
        return Request(
            services.prompt_ids(draw.uid),
            max_tokens=self.max_tokens or services.max_tokens,
            temperature=self.temperature,
            rules=self.rules(),
            stop_ids=services.stop_ids,
            stop_strings=services.stop_strings,
            seed=seed,
            want=services.wanted_statistics,
        )
