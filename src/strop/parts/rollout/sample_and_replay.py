"""Answer prompts afresh, but repeat the stored answer where a draw brings one."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from strop.batch.columns import REPLAY, Column
from strop.engines.asynchronous import AsyncEngine
from strop.engines.base import Answer
from strop.method.part import Draw
from strop.method.services import Sampling, Texts
from strop.parts.rollout._events import undrawn
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields, assemble


@dataclass(frozen=True)
class SampleAndReplay(SamplingFields):
    """Stored answers stand in the batch beside fresh ones, and are marked as replayed.

        a draw with the columns `ids` and `logp`: one rollout of these tokens, origin 4 (replay)
        any other draw: num_rollouts samples as by sample_independently, origin 0

    logp_stored_T is the stored log-probability of replayed tokens, NaN elsewhere. What an engine
    would know of them (log-probabilities, entropy) is NaN and the version -1. Metric:
    rehearsal/replayed (rollouts).

    Reads: draws.   Writes: the token, turn, rollout and prompt tables, logp_stored_T [T] float.
    Source: arXiv 2509.07430 (rehearsal rows beside those of exploration).
    Differs from the source: no.
    Nearest part: sample_independently; equal to it when no draw brings an answer.
    Edges: stored answers are graded again with the others; nothing lasts between steps.
    """

    writes: ClassVar[tuple[str, ...]] = (*COLUMNS, "logp_stored_T")
    acted: ClassVar[tuple[str, ...]] = ("rehearsal/replayed",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "logp_stored_T",
            "float",
            "stored with a replayed answer; NaN elsewhere",
            "nats",
            door=("logp_ref",),
            random="logp",
        ),
    )

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        requests = self.requests(draws, texts, sampling, rng)
        stored = [draw.columns.get("ids") for draw in draws for _ in range(draw.num_rollouts)]
        fresh = [r for r, ids in zip(requests, stored, strict=True) if ids is None]
        drawn = iter(await engine.generate_all(fresh))
        batch = assemble(
            draws,
            [
                next(drawn) if ids is None else Answer(request, (undrawn(ids),))
                for request, ids in zip(requests, stored, strict=True)
            ],
        )
        replayed_B = torch.tensor([ids is not None for ids in stored])
        replayed_T = batch["mask_T"] & replayed_B[batch["rollout_T"]]
        logp_T = torch.full(replayed_T.shape, torch.nan)
        logp = [x for draw in draws for x in draw.columns.get("logp", ())]
        logp_T[replayed_T] = torch.tensor(logp, dtype=torch.float32)
        origin_T = torch.where(replayed_T, REPLAY, batch["origin_T"])
        batch = batch.set(origin_T=origin_T, logp_stored_T=logp_T)
        return batch, None, {"rehearsal/replayed": sum(ids is not None for ids in stored)}
