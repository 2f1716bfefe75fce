"""Answer every prompt alone first, then again with as much of its solution as it needs."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.batch.columns import HINT
from strop.engines.asynchronous import AsyncEngine
from strop.engines.base import Request
from strop.method.part import Draw, require
from strop.method.services import Grading, Sampling, Texts
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields, assemble
from strop.support.errors import UserError


@dataclass(frozen=True)
class SampleWithHints(SamplingFields):
    """Where the policy fails by itself, it practises from a place on the way to the solution.

        D = 1 - mean outcome of the prompt's plain rollouts (stage 0) that have one, within [0, 1]
        w = clip(ratios[0] + (ratios[1] - ratios[0]) D + noise * z, 0, 1),  z ~ N(0, 1)
        hinted rollouts (stage 1) continue prompt and the first w of the demonstration's tokens

    Hint tokens have origin 3 and mask_T true, so that they may learn; no engine drew them, so
    their behaviour and sampler log-probabilities and their entropy there are void (NaN).
    Reads: draws; texts (demonstrations); rng.   Writes: the token, turn, rollout and
    prompt tables, and stage_B [B] int.
    Source: arXiv 2512.13095 (rollouts with difficulty-dependent hints).
    Differs from the source: shares, bounds and noise are not stated there; all are ours.
    Nearest part: sample_independently, which it is where hinted is 0.
    Edges: a prompt without a demonstration, or with w near 0 -> empty hint; a hint never holds
    the solution's last token and counts in max_tokens; plain rollouts are graded twice; none has a
    score -> D is 1; nothing lasts between steps.
    """

    writes: ClassVar[tuple[str, ...]] = (*COLUMNS, "stage_B")
    # Share of a prompt's rollouts that get a hint. Default: ours (half of them).
    hinted: float = 0.5
    # Hint of a prompt that is always, and never, solved: shares. Default: ours (0.1, 0.9).
    ratios: tuple[float, float] = (0.1, 0.9)
    # Deviation of the noise on the share. Default: ours (none).
    noise: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "hinted", low=0.0, high=1.0)
        require(self, "noise", low=0.0)
        if len(self.ratios) != 2 or not all(0 <= share <= 1 for share in self.ratios):
            raise UserError(f"sample_with_hints.ratios must be two shares: {self.ratios}")

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        grading: Grading, rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        hinted = [int(self.hinted * draw.num_rollouts) for draw in draws]
        alone = [draw.num_rollouts - n for draw, n in zip(draws, hinted, strict=True)]
        first = _resized(draws, alone)
        requests = self.requests(first, texts, sampling, rng)
        plain = await engine.generate_all(requests)
        difficulty = [1.0] * len(draws)
        if requests:
            graded = grading.grade(assemble(first, plain))
            difficulty = _difficulty(graded.outcome_B, graded.scored_B, alone)
        shares = self.shares(torch.tensor(difficulty), rng).tolist()
        hints = [
            _hint(texts, draw.uid, share)
            for draw, share, n in zip(draws, shares, hinted, strict=True) for _ in range(n)
        ]  # fmt: skip
        asked = self.requests(_resized(draws, hinted), texts, sampling, rng)
        asked = [_started(request, hint) for request, hint in zip(asked, hints, strict=True)]
        answers = [*plain, *await engine.generate_all(asked)]
        order = _interleaved(alone, hinted)
        batch = assemble(draws, [answers[i] for i in order])
        length = [0] * len(requests) + [len(hint) for hint in hints]
        size_B = torch.tensor([length[i] for i in order], dtype=torch.int64)
        stage_B = torch.tensor([int(i >= len(requests)) for i in order])
        given = [share for share, n in zip(shares, hinted, strict=True) if n]
        metrics = {"hints/share": sum(given) / max(len(given), 1)}
        return with_hints(batch, size_B).set(stage_B=stage_B), None, metrics

    def shares(self, difficulty_P: Tensor, rng: torch.Generator) -> Tensor:
        """The share [P] of the demonstration that each prompt's hint has."""
        least, most = self.ratios
        noise_P = torch.randn(difficulty_P.shape, generator=rng) * self.noise
        return (least + (most - least) * difficulty_P + noise_P).clamp(0, 1)


def with_hints(batch: Batch, hint_B: Tensor) -> Batch:
    """The batch with the last `hint_B` [B] given tokens before each answer as hints."""
    rollout_T, mask_T = batch["rollout_T"], batch["mask_T"]
    answer_T = segments.count(rollout_T, batch.size("B"), mask_T)[rollout_T]
    size_T = batch["size_B"][rollout_T]
    place_T = segments.place_in_run(rollout_T, batch.size("B"))
    begin_T = size_T - answer_T
    hint_T = (place_T < begin_T) & (place_T >= begin_T - hint_B[rollout_T])
    void = {
        name: torch.where(hint_T, float("nan"), batch[name])
        for name in ("logp_behavior_T", "logp_sampler_T", "entropy_behavior_T")
    }
    return batch.set(
        mask_T=mask_T | hint_T,
        origin_T=torch.where(hint_T, HINT, batch["origin_T"]),
        version_T=torch.where(hint_T, -1, batch["version_T"]),
        **void,
    )


def _resized(draws: tuple[Draw, ...], sizes: list[int]) -> tuple[Draw, ...]:
    return tuple(d._replace(num_rollouts=n) for d, n in zip(draws, sizes, strict=True))


def _difficulty(outcome_B: Tensor, scored_B: Tensor, sizes: list[int]) -> list[float]:
    """1 - the mean outcome of each draw's scored answers; 1 where it has none."""
    pairs = zip(torch.split(outcome_B.double(), sizes), torch.split(scored_B, sizes), strict=True)
    own = [part[scored] for part, scored in pairs]
    return [min(max(1 - float(part.mean()), 0.0), 1.0) if len(part) else 1.0 for part in own]


def _hint(texts: Texts, uid: int, share: float) -> tuple[int, ...]:
    """The first `share` of a prompt's demonstration, without what ends it."""
    ids = texts.answer_ids(uid, end=False)
    return ids[: min(int(share * len(ids) + 1e-6), max(len(ids) - 1, 0))]


def _started(request: Request, hint: tuple[int, ...]) -> Request:
    """The request with the hint behind its prompt; hint and answer share the limit."""
    left = max(request.max_tokens - len(hint), 1)
    return dataclasses.replace(request, ids=(*request.ids, *hint), max_tokens=left)


def _interleaved(alone: list[int], hinted: list[int]) -> list[int]:
    """Indices into (all plain, all hinted): each draw's plain ones, then its hinted ones."""
    order, plain, more = [], 0, sum(alone)
    for n, m in zip(alone, hinted, strict=True):
        order += [*range(plain, plain + n), *range(more, more + m)]
        plain, more = plain + n, more + m
    return order
