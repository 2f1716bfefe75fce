"""Move along a ranking of the prompts, as fast as the policy learns."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require
from strop.method.services import Scoring, Texts
from strop.parts.sampling._chosen import ChosenPrompts, draw_by_weight
from strop.parts.sampling._prompts import each_prompt, prompt_batch
from strop.support.errors import UserError

MOST = 1000.0  # most ranks that the centre moves at once, released code


@dataclass(frozen=True)
class DrawAlongRanking(ChosenPrompts):
    """Prompts whose tokens' states point the same way come first, then ever more diverse ones.

        once, with the weights at that time: score_i = mean cosine of the last hidden states among
        the prompt's own tokens + inter_weight * mean cosine between these and the preamble's tokens
        rank j: by falling score; steps take `period` ranks in the order in which they were drawn,
        P(j) ~ exp(-((j - mu) / width)^2 / 2) without replacement; if too few are left for a step:
        mu <- mu + clip(pace tanh(gain (acc - target)) + pace tanh(gain C), 0, 1000), a new draw;
        signal = (gain, target)
        acc: mean outcome of their scored rollouts, C: mean of their angle_B

    The preamble is the tokens that all prompts begin with. Metrics: draw/rank (mean rank of those
    drawn / prompts), /centre (mu / prompts).

    Reads: pool, texts, scoring, rng, state, num_wanted; outcome_B, angle_B [B] float, scored_B [B]
    bool after a step (update).   Writes: draws.
    Source: arXiv 2506.02281; code wangqinsi1/GAINRL.
    Differs from the source: the last layer's output, there the input of its MLP; mu stays within
    the ranking; its code takes a period by rank, lower triangles of a fixed prefix, and halves acc.
    Nearest part: draw_in_shuffled_order; like it if width is very large.
    Edges: no common beginning -> the second term is 0; nothing scored -> mu stays; a period shorter
    than a step -> the step's size; ranking, mu and the rest of the period are in the checkpoint.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"scores_again"})
    # Most ranks that either signal moves mu by. Default: released code (500).
    pace: float = 500.0
    # Ranks within which most draws lie. Default: released code (1000).
    width: float = 1000.0
    # Steepness of both signals, and accuracy above which the first one moves mu. Default: released
    # code.
    signal: tuple[float, float] = (2.0, 0.5)
    # Weight of the preamble's term. Default: paper (1; its code has 8).
    inter_weight: float = 1.0
    # Prompts after which mu moves. Default: released code (256).
    period: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "pace", low=0.0)
        require(self, "width", low=1e-6)
        if self.signal[0] < 0:
            raise UserError(f"draw_along_ranking.signal begins with a steepness: {self.signal}")
        require(self, "inter_weight")
        require(self, "period", low=1)

    def init(self) -> dict[str, Any]:
        """Nothing is ranked or drawn; `told`: sums of outcomes and angles, number of rollouts."""
        return {**super().init(), "ranking": (), "centre": 0.0, "left": (), "told": (0.0, 0.0, 0)}

    def __call__(
        self, pool: tuple[int, ...], texts: Texts, scoring: Scoring, rng: torch.Generator,
        state: dict[str, Any], num_wanted: int | None = None,
    ) -> Result:  # fmt: skip
        ranking = state["ranking"] or self.ranked(pool, texts, scoring)
        state = {**state, "ranking": ranking}
        wanted, num = self.num_prompts if num_wanted is None else num_wanted, len(ranking)
        if len(state["left"]) < wanted:
            state = self._next_period(state, wanted, rng)
        ranks, centre = {ranking[place]: place for place in state["left"]}, state["centre"]

        def why(uid: int) -> str:
            return f"rank {ranks[uid] + 1} of {num}, centre {centre + 1:.0f}"

        draws, state = self.chosen(list(ranks), state, num_wanted, why)
        taken = {ranks[draw.uid] for draw in draws}
        mean = sum(ranks[draw.uid] for draw in draws) / len(draws)
        left = tuple(place for place in state["left"] if place not in taken)
        metrics = {"draw/rank": mean / num, "draw/centre": centre / num}
        return Result(draws, {**state, "left": left}, metrics)

    def _next_period(
        self, state: dict[str, Any], wanted: int, rng: torch.Generator
    ) -> dict[str, Any]:
        """Moves the centre after a period, and adds the next period's ranks to those left."""
        outcome, angle, count = state["told"]
        num, centre, left = len(state["ranking"]), state["centre"], state["left"]
        if count:
            centre = min(centre + self.step(outcome / count, angle / count), num - 1.0)
        place_N = torch.arange(num, dtype=torch.float64)
        size = min(max(self.period, wanted), num)
        order = draw_by_weight(-(((place_N - centre) / self.width) ** 2) / 2, size, rng)
        more = tuple(place for place in order if place not in left)
        return {**state, "centre": centre, "left": (*left, *more), "told": (0.0, 0.0, 0)}

    def ranked(self, pool: tuple[int, ...], texts: Texts, scoring: Scoring) -> tuple[int, ...]:
        """The prompts by falling score; ties keep the pool's order."""
        prompts = [texts.prompt_ids(uid) for uid in pool]
        places = zip(*prompts, strict=False)  # as far as the shortest prompt goes
        alike = [len(set(tokens)) == 1 for tokens in places] if len(pool) > 1 else [False]
        shared = min([*alike, False].index(False), min(map(len, prompts)) - 1)

        def score(_: int, state_TF: Tensor) -> Tensor:
            before_TF, own_TF = state_TF[:shared], state_TF[shared:]
            inner = segments.mean_cosine(own_TF, own_TF)
            return inner + self.inter_weight * segments.mean_cosine(own_TF, before_TF)

        score_N = each_prompt(prompt_batch(pool, texts), scoring, score)
        order = score_N.argsort(descending=True, stable=True).tolist()
        return tuple(pool[row] for row in order)

    def update(
        self, outcome_B: Tensor, angle_B: Tensor, scored_B: Tensor, state: dict[str, Any]
    ) -> dict[str, Any]:
        """Adds the outcomes and angles of a step's rollouts to the sums of the period."""
        outcome, angle, count = state["told"]
        outcome += float(outcome_B[scored_B].double().sum())
        angle += float(angle_B[scored_B].double().sum())
        return {**state, "told": (outcome, angle, count + int(scored_B.sum()))}

    def step(self, accuracy: float, angle: float) -> float:
        """Ranks that the centre moves."""
        gain, target = self.signal
        signals = torch.tensor([accuracy - target, angle], dtype=torch.float64)
        return float((self.pace * (gain * signals).tanh()).sum().clamp(0.0, MOST))
