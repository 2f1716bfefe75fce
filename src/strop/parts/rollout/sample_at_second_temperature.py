"""Answer every drawn prompt several times, and some of them again, hotter or cooler."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.engines.asynchronous import AsyncEngine
from strop.method.part import Draw, require
from strop.method.schedule import EntropyTarget, Schedule
from strop.method.services import Sampling, Texts
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields, assemble

PLAIN, HOTTER, COOLER = 0, 1, 2  # stage_B
AGAIN = 1 << 17  # added to a draw's number: above all draws of a prompt in a step


@dataclass(frozen=True)
class SampleAtSecondTemperature(SamplingFields):
    """Right answers from another temperature are there to learn from, to move entropy by them.

        plain rollouts as by sample_independently, stage 0
        as many again for the first `share` of the draws, each a group of its own: at the
        temperature hot if previous <= target (stage 1), else at cool (stage 2)

    previous is the entropy of the step before, as carry_metric_forward sets it.

    Reads: draws.   Writes: the token, turn, rollout and prompt tables, and stage_B [B] int.
    Source: code only: 597358816/AEPO (the method of arXiv 2510.08141).
    Differs from the source: no.
    Nearest part: sample_independently; its samples are those of this one at stage 0.
    Edges: too few draws for the share -> none more. What the engine says of the others' entropy
    and log-probability without rules is of another temperature and void (NaN).
    """

    writes: ClassVar[tuple[str, ...]] = (*COLUMNS, "stage_B")
    # Temperature while entropy is at or below the target. Default: released code.
    hot: float = 1.2
    # Temperature while entropy is above it. Default: released code.
    cool: float = 0.8
    # What entropy is held at, nats; may change over the run. Default: released code.
    target: EntropyTarget = 0.5
    # Entropy of the step before, nats. Default: released code (0 before the first step).
    previous: float = 0.0
    # Share of the draws that are sampled again. Default: released code (a quarter).
    share: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "hot", "cool", low=0.001)
        require(self, "target", "previous")
        require(self, "share", low=0.0, high=1.0)

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        assert not isinstance(self.target, Schedule)
        scarce = self.previous <= self.target
        again = tuple(
            draw._replace(draw=draw.draw + AGAIN) for draw in draws[: int(self.share * len(draws))]
        )
        plain = self.requests(draws, texts, sampling, rng)
        temperature = self.hot if scarce else self.cool
        others = [
            dataclasses.replace(request, temperature=temperature)
            for request in self.requests(again, texts, sampling, rng)
        ]
        requests = [*plain, *others]
        answers = await engine.generate_all(requests)
        stage = HOTTER if scarce else COOLER
        stage_B = torch.tensor([PLAIN] * len(plain) + [stage] * len(others))
        return _void(assemble((*draws, *again), answers), stage_B), None


def _void(batch: Batch, stage_B: Tensor) -> Batch:
    """The batch with stages, and without what holds at another temperature than the policy's."""
    other_T = batch["mask_T"] & (stage_B > PLAIN)[batch["rollout_T"]]
    void = {
        name: torch.where(other_T, float("nan"), batch[name])
        for name in ("logp_sampler_T", "entropy_behavior_T")
    }
    return batch.set(stage_B=stage_B, **void)
