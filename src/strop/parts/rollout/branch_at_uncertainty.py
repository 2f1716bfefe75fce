"""Branch a prompt's answers off each other where the policy was least decided what to mean."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from strop.engines.asynchronous import AsyncEngine
from strop.engines.base import Answer, Event, Request
from strop.method.part import Draw, require, require_one_of
from strop.method.services import Sampling, Scoring, Texts
from strop.parts.rollout._rows import rows_by_draw, with_parents
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields, assemble

POSITIONS = 512  # so many positions' embeddings are looked up at once
MEASURES = ("dissimilarity", "off_diagonal", "similarity", "entropy")


@dataclass
class _Answer:
    """An answer and its branching metric; the answer that it continues, if any, and the token."""

    whole: Answer
    metric: Tensor  # [tokens]
    parent: int = -1
    fork_at: int = -1


@dataclass
class _Pool:
    """The answers of one draw."""

    draw: Draw
    asked: list[Request]
    first_row: int
    answers: list[_Answer] = field(default_factory=list)

    def started(self, number: int, parent: int, fork_at: int) -> Answer:
        """The part of an answer that it shares with the one that it continues."""
        events = self.answers[parent].whole.first(fork_at).events if parent >= 0 else ()
        return Answer(self.asked[number], events)

    def best_place(self) -> tuple[int, int]:
        """The answer and its token with the largest metric; of answers alike up to it the first.

        They have the same metric there but for rounding, which must not choose.
        """
        best = [
            float(answer.metric.max()) if len(answer.metric) else -torch.inf
            for answer in self.answers
        ]
        if max(best) == -torch.inf:  # all failed before their first token
            return -1, -1
        most = self.answers[best.index(max(best))]
        place = int(most.metric.argmax())
        alike = (
            number for number, answer in enumerate(self.answers)
            if len(answer.metric) > place and answer.whole.ids[:place] == most.whole.ids[:place]
        )  # fmt: skip
        return next(alike), place


@dataclass(frozen=True)
class BranchAtUncertainty(SamplingFields):
    """Answers of a prompt branch where the likeliest next tokens differ most in meaning.

        metric_t = SD_t * H_t over the num_top likeliest next tokens a, b at place t
        H = -sum_a p_a log p_a;   measure: "dissimilarity" SD = sum_ab p_a p_b (1 - cos(e_a, e_b)),
        "similarity" -sum_ab p_a p_b cos, "off_diagonal" the same over a != b, "entropy" SD = 1

    The first answer begins at the prompt. Each further one does so with probability `explore`; else
    it keeps the tokens before the place with the largest metric of all answers so far (of answers
    alike up to there, those of the first), and is drawn again from there within the same limit.
    e: input embeddings; p: before the temperature.

    Reads: draws.   Writes: the token, turn, rollout and prompt tables; fork_at_B counts the
    answer's tokens.
    Source: arXiv 2601.05053, sec. 3.1.
    Differs from the source: with its "similarity" (and its code's "off_diagonal") the metric is
    below 0 and nearest to 0 where the policy is certain; the default is 0 there.
    Nearest part: sample_independently; equal to it in distribution when explore is 1.
    Edges: as many rounds of generation as answers; all prompts take part in each. Stateless.
    """

    writes: ClassVar[tuple[str, ...]] = COLUMNS
    # Probability of starting again from the prompt. Default: paper (0.5).
    explore: float = 0.5
    # How far the likeliest next tokens lie apart. Default: ours (see above).
    measure: str = "dissimilarity"
    # Likeliest tokens that are compared. Default: paper (20).
    num_top: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "explore", low=0.0, high=1.0)
        require(self, "num_top", low=1)
        require_one_of(self, "measure", MEASURES)

    @property
    def needs(self) -> frozenset[str]:
        """Answers continue others, from the place that the likeliest tokens show."""
        return super().needs | {"top"}

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        scoring: Scoring, rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        table_VD = scoring.embeddings()
        asked = self.requests(draws, texts, sampling, rng)
        pools = _pools(draws, asked, min(self.num_top, table_VD.shape[0]))
        for number in range(max((draw.num_rollouts for draw in draws), default=0)):
            growing = [pool for pool in pools if number < pool.draw.num_rollouts]
            coins = torch.rand(len(growing), generator=rng).tolist()
            places = [
                (-1, -1) if number == 0 or coin < self.explore else pool.best_place()
                for pool, coin in zip(growing, coins, strict=True)
            ]
            started = [
                pool.started(number, *place) for pool, place in zip(growing, places, strict=True)
            ]
            ends = await engine.generate_all([each.more() for each in started])
            for pool, place, each, end in zip(growing, places, started, ends, strict=True):
                pool.answers.append(self._answer(pool, each, end, place, table_VD))
        answers = [answer for pool in pools for answer in pool.answers]
        batch = assemble(draws, [answer.whole for answer in answers])
        rows = [
            pool.first_row + answer.parent if answer.parent >= 0 else -1
            for pool in pools
            for answer in pool.answers
        ]
        return with_parents(batch, rows, [answer.fork_at for answer in answers]), None

    def _answer(
        self, pool: _Pool, started: Answer, end: Answer, place: tuple[int, int], table_VD: Tensor
    ) -> _Answer:
        metric = branching_metric(end.events, table_VD, self.measure)
        parent, fork_at = place
        if parent >= 0:
            metric = torch.cat([pool.answers[parent].metric[:fork_at], metric])
        events = (*started.events, *(event._replace(top=()) for event in end.events))
        return _Answer(Answer(started.request, events), metric, parent, fork_at)


def _pools(draws: Sequence[Draw], asked: Sequence[Request], num_top: int) -> list[_Pool]:
    reporting = [
        replace(request, num_top=num_top, want=request.want | {"top"}, keep=True)
        for request in asked
    ]
    return [
        _Pool(draw, reporting[rows.start : rows.stop], rows.start)
        for draw, rows in rows_by_draw(draws)
    ]


def branching_metric(events: Sequence[Event], table_VD: Tensor, measure: str) -> Tensor:
    """The metric [tokens] at each new token, from the likeliest tokens that were reported."""
    tops = [top for event in events for top in event.top]
    found = [
        _metric(
            torch.tensor([list(top) for top in some]),
            torch.tensor([list(top.values()) for top in some], dtype=torch.float64).exp(),
            table_VD,
            measure,
        )
        for some in (tops[i : i + POSITIONS] for i in range(0, len(tops), POSITIONS))
    ]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)


def _metric(id_LA: Tensor, p_LA: Tensor, table_VD: Tensor, measure: str) -> Tensor:
    entropy_L: Tensor = torch.special.entr(p_LA).sum(1)
    if measure == "entropy":
        return entropy_L
    unit_LAD = normalize(table_VD[id_LA.to(table_VD.device)].double(), dim=-1)
    p_LA = p_LA.to(unit_LAD.device)
    sum_LD = torch.einsum("la,lad->ld", p_LA, unit_LAD)
    similarity_L = sum_LD.square().sum(1).cpu()
    p_LA = p_LA.cpu()
    if measure == "off_diagonal":
        return -(similarity_L - p_LA.square().sum(1)) * entropy_L
    if measure == "similarity":
        return -similarity_L * entropy_L
    return (p_LA.sum(1).square() - similarity_L).clamp(min=0) * entropy_L
