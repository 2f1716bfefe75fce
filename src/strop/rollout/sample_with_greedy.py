"""Answer every drawn prompt several times at random, and once with its likeliest tokens."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from strop.part import Draw, fields_of, require
from strop.rollout.assemble import COLUMNS, assemble
from strop.rollout.commands import Strategy
from strop.rollout.listen import listen
from strop.rollout.sample_independently import SampleIndependently


@dataclass(frozen=True)
class SampleWithGreedy:
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
    # Most new tokens; 0: the task's own limit. Default: ours (tasks know their answers' length).
    max_tokens: int = 0
    # Of the samples' softmax; the greedy answer has none. Default: paper (1.0).
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

    def __call__(self, draws: tuple[Draw, ...], services: Any, rng: torch.Generator) -> Strategy:
        plain = SampleIndependently(**fields_of(self))
        sampled = iter(plain.requests(draws, services, rng))
        greedy = iter(
            plain.requests(tuple(d._replace(num_rollouts=1) for d in draws), services, rng)
        )
        requests, stage = [], []
        for draw in draws:
            requests += [next(sampled) for _ in range(draw.num_rollouts)]
            requests.append(dataclasses.replace(next(greedy), temperature=0.0, rules=()))
            stage += [0] * draw.num_rollouts + [1]
        wider = tuple(d._replace(num_rollouts=d.num_rollouts + 1) for d in draws)
        heard = yield from listen(requests)
        return assemble(wider, requests, heard).set(stage_B=torch.tensor(stage)), None
