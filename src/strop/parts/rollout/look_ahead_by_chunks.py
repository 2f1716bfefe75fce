"""Grow every answer chunk by chunk, each chosen from several by what the policy does after it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from strop.engines.base import Event, Request
from strop.method.part import Draw, require
from strop.method.services import Sampling, Texts
from strop.parts.rollout.assemble import COLUMNS, assemble
from strop.parts.rollout.base import SamplingFields
from strop.parts.rollout.commands import Fork, Strategy, Submit
from strop.parts.rollout.listen import Heard, Start, first_tokens, hear


@dataclass
class _Answer:
    """An answer on its way: whole, what was kept of it, and the engine's request that has that."""

    request: Request
    seed: int  # of the candidate that was kept last
    number: int = -1  # none yet
    events: list[Event] = field(default_factory=list)
    length: int = 0  # tokens kept
    ended: bool = False

    def start(self, seed: int, window: int) -> Start:
        """A candidate of at most `window` tokens after what was kept."""
        size = min(window, self.request.max_tokens - self.length)
        if self.number < 0:
            return Submit(replace(self.request, seed=seed, max_tokens=size, keep=True))
        place = len(self.request.ids) + self.length
        return Fork(self.number, place, changes={"seed": seed, "max_tokens": size})

    def keep(self, found: Heard, seed: int, num_tokens: int, context_tokens: int) -> None:
        """Go on after the first tokens of a candidate, or end with it where it has no more."""
        size = sum(len(event.ids) for event in found.events)
        self.number, self.seed = found.number, seed
        more = size > num_tokens
        self.events += first_tokens(found.events, num_tokens) if more else found.events
        self.length += min(size, num_tokens)
        stopped = not more and found.events[-1].ended in ("stop", "failed")
        full = len(self.request.ids) + self.length >= context_tokens
        self.ended = stopped or full or self.length == self.request.max_tokens


@dataclass(frozen=True)
class LookAheadByChunks(SamplingFields):
    """Answers take the way on which the policy will be surest, a chunk at a time.

        candidate k: up to (1 + chunks_ahead) chunk_tokens tokens after what was kept
        v_k = exp(mean log p of its tokens);   one ~ softmax(v / select_temperature), 0: the largest
        kept: its first chunk_tokens tokens, until an answer's end is kept

    The kept candidate goes on as the first of the next step (its seed stays); the others are new.
    Reads: draws.   Writes: the token, turn, rollout and prompt tables.
    Source: arXiv 2410.17195; its code chang-github-00/llm-predictive-decoding (MPC_Sample).
    Differs from the source: 1. chunks of so many tokens, not lines; 2. no threshold on v; 3. all
    earlier candidates that fit what was kept are chosen from again there; 4. the tokens are learnt.
    Nearest part: sample_independently; equal to it when num_candidates is 1.
    Edges: what is chosen has no known distribution: its logp_behavior_T is void (NaN), but with one
    candidate. p is at `temperature`, cut as the tokens are. A stop string that begins in a kept
    chunk and ends after it is not seen. As many rounds of generation as chunks. Stateless.
    """

    writes: ClassVar[tuple[str, ...]] = COLUMNS
    facts: ClassVar[frozenset[str]] = frozenset({"samples_again"})
    # Ways that are tried at each step. Default: released code.
    num_candidates: int = 8
    # Tokens kept at each step. Default: ours (short tasks; more where answers are long).
    chunk_tokens: int = 4
    # Chunks that are drawn after it to judge by; 0: it is judged alone. Default: released code.
    chunks_ahead: int = 2
    # Of the choice between probabilities; 0: always the largest. Default: released code.
    select_temperature: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "num_candidates", low=1)
        require(self, "chunk_tokens", low=1)
        require(self, "chunks_ahead", low=0)
        require(self, "select_temperature", low=0.0)

    @property
    def needs(self) -> frozenset[str]:
        """Candidates go on from what was kept."""
        return super().needs | {"fork"}

    def __call__(
        self, draws: tuple[Draw, ...], texts: Texts, sampling: Sampling, rng: torch.Generator
    ) -> Strategy:
        requests = self.requests(draws, texts, sampling, rng)
        answers = [_Answer(request, request.seed) for request in requests]
        window = (1 + self.chunks_ahead) * self.chunk_tokens
        while going := [answer for answer in answers if not answer.ended]:
            new = torch.randint(2**62, (len(going), self.num_candidates - 1), generator=rng)
            seeds = [[a.seed, *own] for a, own in zip(going, new.tolist(), strict=True)]
            heard = yield from hear(
                [a.start(seed, window) for a, own in zip(going, seeds, strict=True) for seed in own]
            )
            for row, answer in enumerate(going):
                found = heard[row * self.num_candidates : (row + 1) * self.num_candidates]
                k = self._choose(found, rng)
                answer.keep(found[k], seeds[row][k], self.chunk_tokens, sampling.context_tokens)
        batch = assemble(draws, requests, [answer.events for answer in answers])
        if self.num_candidates > 1:
            behavior_T = torch.where(batch["mask_T"], torch.nan, batch["logp_behavior_T"])
            batch = batch.set(logp_behavior_T=behavior_T)
        return batch, None

    def _choose(self, found: Sequence[Heard], rng: torch.Generator) -> int:
        """The place of the candidate that is kept: of one that did not fail, where there is one."""
        logps = [[x for event in each.events for x in event.logp] for each in found]
        value = torch.tensor(
            [math.exp(sum(x) / len(x)) if x else 0.0 for x in logps], dtype=torch.float64
        )
        lost = torch.tensor([each.events[-1].ended == "failed" for each in found])
        if not bool(lost.all()):
            value = value.masked_fill(lost, -torch.inf)
        if self.select_temperature == 0:
            return int(value.argmax())
        share = (value / self.select_temperature).softmax(0)
        return int(torch.multinomial(share, 1, generator=rng))
