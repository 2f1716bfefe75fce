"""Answer every drawn prompt several times at random, and once with its likeliest tokens."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch

from strop.engines.asynchronous import AsyncEngine
from strop.method.part import Draw
from strop.method.services import Sampling, Texts
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields, assemble


@dataclass(frozen=True)
class SampleWithGreedy(SamplingFields):
    """Beside the samples to learn from, each prompt gets one greedy answer to compare them with.

        num_rollouts samples as by sample_independently, stage 0
        one more: token = argmax logits, stage 1

    Reads: draws.   Writes: the token, turn, rollout and prompt tables, and stage_B [B] int.
    Source: arXiv 2310.10505 (the extra greedy generation of each prompt).
    Differs from the source: no.
    Nearest part: sample_independently; its samples are those of this one without the greedy rows.
    Edges: as sample_independently. The greedy rollout is the last of its group; whatever follows
    must take it out of what is trained on.
    """

    writes: ClassVar[tuple[str, ...]] = (*COLUMNS, "stage_B")

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        one_each = [draw._replace(num_rollouts=1) for draw in draws]
        sampled = iter(self.requests(draws, texts, sampling, rng))
        greedy = iter(self.requests(one_each, texts, sampling, rng))
        requests, stage = [], []
        for draw in draws:
            requests += [next(sampled) for _ in range(draw.num_rollouts)]
            requests.append(dataclasses.replace(next(greedy), temperature=0.0, rules=()))
            stage += [0] * draw.num_rollouts + [1]
        wider = tuple(d._replace(num_rollouts=d.num_rollouts + 1) for d in draws)
        answers = await engine.generate_all(requests)
        return assemble(wider, answers).set(stage_B=torch.tensor(stage)), None
