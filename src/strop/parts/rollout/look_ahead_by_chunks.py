"""Grow answers chunk by chunk, each chosen from several by how the policy continues it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from strop.engines.asynchronous import AsyncEngine
from strop.engines.base import Answer, Request
from strop.method.part import Draw, require
from strop.method.services import Sampling, Texts
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields, assemble


@dataclass
class _Answer:
    """An answer in progress: the part kept so far, and the seed of the last candidate."""

    kept: Answer
    seed: int
    last: Answer | None = None  # the candidate, whole
    ended: bool = False

    def candidate(self, seed: int, window: int) -> Request:
        """A request for at most `window` tokens after the part kept so far."""
        left = self.kept.request.max_tokens - len(self.kept.ids)
        return self.kept.more(min(window, left), seed=seed, keep=True)

    def keep(self, found: Answer, num_tokens: int, context_tokens: int) -> None:
        """Keep the first tokens of a candidate, and end the answer if it has no more."""
        more = len(found.ids) > num_tokens
        events = found.first(num_tokens).events if more else found.events
        self.seed, self.last = found.request.seed, found
        self.kept = Answer(self.kept.request, (*self.kept.events, *events))
        stopped = not more and found.ended in ("stop", "failed")
        full = len(self.kept.sequence) >= context_tokens
        self.ended = stopped or full or len(self.kept.ids) == self.kept.request.max_tokens


@dataclass(frozen=True)
class LookAheadByChunks(SamplingFields):
    """Answers take the path on which the policy will be surest, a chunk at a time.

        candidate k: up to (1 + chunks_ahead) chunk_tokens tokens after the kept part
        v_k = exp(mean log p of its tokens)
        choice ~ softmax(v / select_temperature); at 0 the largest v
        kept: the choice's first chunk_tokens tokens, until an answer's end is kept

    The chosen candidate is also the first of the next step (its seed stays); the others are new.
    Reads: draws.   Writes: the token, turn, rollout and prompt tables.
    Source: arXiv 2410.17195; its code chang-github-00/llm-predictive-decoding (MPC_Sample).
    Differs from the source: 1. chunks of a fixed number of tokens, not lines; 2. no threshold on v;
    3. there the choice includes all earlier candidates that begin with the kept part; 4. here the
    policy trains on the tokens.
    Nearest part: sample_independently; equal to it when num_candidates is 1.
    Edges: chosen tokens have no known distribution: their logp_behavior_T is void (NaN), except
    with one candidate. p is at `temperature`, with the sampler's cuts. A stop string that begins in
    a kept chunk and ends after it is not seen. There are as many rounds of generation as chunks.
    Stateless.
    """

    writes: ClassVar[tuple[str, ...]] = COLUMNS
    facts: ClassVar[frozenset[str]] = frozenset({"samples_again"})
    # Candidates that are tried at each step. Default: released code.
    num_candidates: int = 8
    # Tokens kept at each step. Default: ours (for short tasks; long answers need more).
    chunk_tokens: int = 4
    # Chunks that are drawn after it to judge it by; 0: it is judged alone. Default: released code.
    chunks_ahead: int = 2
    # Temperature of the choice between candidates; 0: always the largest. Default: released code.
    select_temperature: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "num_candidates", "chunk_tokens", low=1)
        require(self, "chunks_ahead", low=0)
        require(self, "select_temperature", low=0.0)

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        requests = self.requests(draws, texts, sampling, rng)
        answers = [_Answer(Answer(request, ()), request.seed) for request in requests]
        window, others, chunks = (1 + self.chunks_ahead) * self.chunk_tokens, 0, 0
        while going := [answer for answer in answers if not answer.ended]:
            new = torch.randint(2**62, (len(going), self.num_candidates - 1), generator=rng)
            seeds = [[a.seed, *own] for a, own in zip(going, new.tolist(), strict=True)]
            pairs = [(a, seed) for a, own in zip(going, seeds, strict=True) for seed in own]
            tried = await engine.generate_all([a.candidate(seed, window) for a, seed in pairs])
            for row, answer in enumerate(going):
                found = tried[row * self.num_candidates : (row + 1) * self.num_candidates]
                place = self._choose(found, rng)
                chunks, others = chunks + 1, others + int(place > 0)
                before, chosen = answer.last, found[place]
                answer.keep(chosen, self.chunk_tokens, sampling.context_tokens)
                for each in [*found, *([before] if before else [])]:
                    if answer.ended or each is not chosen:
                        engine.drop(each)
        batch = assemble(draws, [answer.kept for answer in answers])
        if self.num_candidates > 1:
            behavior_T = torch.where(batch["mask_T"], torch.nan, batch["logp_behavior_T"])
            batch = batch.set(logp_behavior_T=behavior_T)
        return batch, None, {"foresight/frac_switched": others / max(chunks, 1)}

    def _choose(self, found: Sequence[Answer], rng: torch.Generator) -> int:
        """The index of the chosen candidate, among those that did not fail if there are any."""
        logps = [[x for event in each.events for x in event.logp] for each in found]
        value = torch.tensor(
            [math.exp(sum(x) / len(x)) if x else 0.0 for x in logps], dtype=torch.float64
        )
        lost = torch.tensor([each.failed for each in found])
        if not bool(lost.all()):
            value = value.masked_fill(lost, -torch.inf)
        if self.select_temperature == 0:
            return int(value.argmax())
        share = (value / self.select_temperature).softmax(0)
        return int(torch.multinomial(share, 1, generator=rng))
