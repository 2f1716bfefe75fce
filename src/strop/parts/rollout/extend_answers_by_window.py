"""Draw a window of tokens of every answer in a step, and continue the unfinished ones later."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.batch.columns import Column
from strop.engines.asynchronous import AsyncEngine
from strop.engines.base import Answer
from strop.method.part import Draw, require
from strop.method.services import Sampling, Texts
from strop.parts.rollout._unfinished import (
    Group,
    Saved,
    batch_of,
    joined,
    new_groups,
    opened,
    put_off,
)
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields
from strop.support.exits import Exit


@dataclass(frozen=True)
class ExtendAnswersByWindow(SamplingFields):
    """No step waits for the end of an answer: the tokens that it drew of one are in its batch.

        pool: what earlier steps left unfinished, oldest first, and all draws of this step
        each answer of the pool continues for at most `window` tokens, to max_tokens in all
        one that has ended leaves the pool; another is pending_B and continues in the next step

    window_T marks the tokens of this step. Every token keeps the log-probability and the version
    of the weights that drew it. Metrics: pool/answers, /pending (of them), /age_mean and /age_max
    (versions of the weights since an answer began), /window_share (of the batch's policy tokens).

    Reads: draws.   Writes: the token, turn, rollout and prompt tables, pending_B, window_T.
    Source: arXiv 2506.15050 (rollouts of T-PPO; constants not found).
    Differs from the source: caches are not kept from step to step; the weights change between.
    Nearest part: leave_slow_groups_for_later, whose batches have whole groups; equal to
    sample_independently when window is 0 or as large as max_tokens.
    Edges: an answer that the context cuts has ended; what a curation requests within a step joins
    the pool and draws a window, and no other answer continues; the pool is in the checkpoint.
    """

    writes: ClassVar[tuple[str, ...]] = (*COLUMNS, "pending_B", "window_T")
    declares: ClassVar[tuple[Column, ...]] = (
        Column("window_T", "bool", "drawn in this step, of an answer that may be older"),
    )
    acted: ClassVar[tuple[str, ...]] = ("pool/pending",)
    # Tokens of an answer that a step draws at most; 0: all of them. Default: ours (none is stated).
    window: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "window", low=0)

    def init(self) -> Saved:
        """An empty pool."""
        return {"groups": (), "phases": 0, "extended": False}

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        rng: torch.Generator, state: Saved,
    ) -> Rollouts:  # fmt: skip
        new = new_groups(draws, self.requests(draws, texts, sampling, rng))
        ask = partial(self.request, sampling)  # with the current options
        kept = state["groups"]
        pool = new if state["extended"] else [opened(saved, texts, ask) for saved in kept] + new
        before = [len(answer.ids) for group in pool for answer in group.answers]
        await self._extend(pool, engine, sampling.context_tokens)
        phase = state["phases"] + 1
        left = tuple(put_off(each, phase) for group in pool for each in _unfinished(group))
        after = {"groups": (kept if state["extended"] else ()) + left, "phases": phase}
        batch = _marked(batch_of(pool), pool, before)
        return batch, {**after, "extended": True}, _metrics(pool, batch)

    def observe(self, state: Saved) -> Saved:
        """The step has all of its rollouts: pending answers continue in the next one."""
        return {**state, "extended": False}

    async def _extend(self, pool: Sequence[Group], engine: AsyncEngine, context: int) -> None:
        """Draw a window of every answer."""
        answers = [answer for group in pool for answer in group.answers]
        left = [answer.request.max_tokens - len(answer.ids) for answer in answers]
        size = self.window or max(left)
        drawn = iter(
            await engine.generate_all(
                [a.more(min(size, most)) for a, most in zip(answers, left, strict=True)]
            )
        )
        for group in pool:
            whole = [joined(answer, next(drawn)) for answer in group.answers]
            group.answers = [_open_again(answer, context) for answer in whole]


def _open_again(answer: Answer, context: int) -> Answer:
    """The answer, which has not ended if its window alone did."""
    size = len(answer.ids)
    has_room = size < answer.request.max_tokens and len(answer.sequence) < context
    return answer.first(size) if answer.ended == "length" and has_room else answer


def _unfinished(group: Group) -> list[Group]:
    """The group with only its unfinished answers; none where all have ended."""
    answers = [answer for answer in group.answers if not answer.ended]
    draw = group.draw._replace(num_rollouts=len(answers))
    return [replace(group, draw=draw, answers=answers)] if answers else []


def _marked(batch: Batch, pool: Sequence[Group], before: Sequence[int]) -> Batch:
    """The batch of the pool with what has not ended and what is new; before: sizes of old."""
    answers = [answer for group in pool for answer in group.answers]
    pending_B = torch.tensor([not answer.ended for answer in answers])
    window_T = torch.zeros_like(batch["mask_T"])
    sizes = zip(answers, before, strict=True)
    window_T[batch["mask_T"]] = torch.tensor(
        list(chain.from_iterable([n >= old for n in range(len(a.ids))] for a, old in sizes)),
        dtype=torch.bool,
    )
    exit_B = batch["exit_B"].masked_fill(pending_B, int(Exit.PENDING))
    return batch.set(pending_B=pending_B, window_T=window_T, exit_B=exit_B)


def _metrics(pool: Sequence[Group], batch: Batch) -> dict[str, float]:
    newest = max((version for group in pool for version in group.versions()), default=0)
    ages = [
        newest - min((event.version for event in answer.events if event.ids), default=newest)
        for group in pool
        for answer in group.answers
    ]
    window_T: Tensor = batch["window_T"][batch["mask_T"]]
    return {
        "pool/answers": float(len(ages)),
        "pool/pending": float(batch["pending_B"].sum()),
        "pool/age_mean": sum(ages) / len(ages),
        "pool/age_max": float(max(ages)),
        "pool/window_share": float(window_T.double().mean()) if len(window_T) else 0.0,
    }
