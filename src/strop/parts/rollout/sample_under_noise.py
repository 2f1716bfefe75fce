"""Sample each answer to a prompt under its own level of noise; train on the clean prompt."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from strop.batch.columns import Column
from strop.engines.asynchronous import AsyncEngine
from strop.engines.base import Answer
from strop.method.part import Draw, require
from strop.method.schedule import Schedule
from strop.method.services import Sampling, Texts
from strop.parts.rollout._events import void
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields, assemble
from strop.support.errors import UserError


@dataclass(frozen=True)
class SampleUnderNoise(SamplingFields):
    """The policy explores by reading its prompt ever less clearly, and learns as if it had read it.

        rollout i of a draw has level n_i = scale * (0, *levels)[i mod (1 + len(levels))]
        each token of its prompt is replaced with probability n_i by one drawn evenly from the
        vocabulary; special tokens stay, and are never drawn

    The batch holds the clean prompt. What the engine said of answers to a changed prompt is void
    (NaN): their log-probabilities in training are those under the clean one.

    Reads: draws; texts; rng.   Writes: the token, turn, rollout and prompt
    tables, and noise_level_B [B] float.
    Source: arXiv 2510.21122; code Artanic30/NoisyGRPO.
    Differs from the source: tokens of text are replaced where it diffuses an image; levels repeat
    where there are more rollouts than levels.
    Nearest part: sample_independently; equal to it (but for noise_level_B) when all levels are 0.
    Edges: a prompt that no draw changed keeps its engine's numbers; nothing lasts between steps.
    """

    writes: ClassVar[tuple[str, ...]] = (*COLUMNS, "noise_level_B")
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "noise_level_B",
            "float",
            "share of its prompt that was replaced",
            door=("noise_levels",),
            random="uniform",
        ),
    )
    # Share of the prompt's tokens that is replaced for each rollout after a clean one.
    # Default: released code.
    levels: tuple[float, ...] = (0.3, 0.6, 0.9)
    # Factor on all levels; may change over the run. Default: released code (linear(1, 0.5) there
    # as an option).
    scale: float | Schedule = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "scale", low=0.0, high=1.0)
        if not all(0 <= level < 1 for level in self.levels):
            raise UserError(f"sample_under_noise.levels must lie in [0, 1): {self.levels}")

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        assert not isinstance(self.scale, Schedule), "schedules become numbers before a step"
        clean = self.requests(draws, texts, sampling, rng)
        places = [i for draw in draws for i in range(draw.num_rollouts)]
        levels = (0.0, *self.levels)
        noise = [self.scale * levels[i % len(levels)] for i in places]
        special = set(texts.special_ids) | set(sampling.stop_ids)
        usual = torch.tensor([i for i in range(texts.num_tokens) if i not in special])
        asked = [
            replace(request, ids=_noisy(request.ids, level, usual, special, rng))
            for request, level in zip(clean, noise, strict=True)
        ]
        noisy = await engine.generate_all(asked)
        answers = [
            Answer(request, tuple(void(each.events) if other.ids != request.ids else each.events))
            for request, other, each in zip(clean, asked, noisy, strict=True)
        ]
        return assemble(draws, answers).set(noise_level_B=torch.tensor(noise)), None


def _noisy(
    ids: tuple[int, ...], level: float, usual: torch.Tensor, special: set[int], rng: torch.Generator
) -> tuple[int, ...]:
    """The prompt with each token replaced with probability `level`; special ones stay."""
    hit = torch.rand(len(ids), generator=rng) < level
    other = usual[torch.randint(len(usual), (len(ids),), generator=rng)]
    return tuple(
        new if is_hit and id not in special else id
        for id, is_hit, new in zip(ids, hit.tolist(), other.tolist(), strict=True)
    )
