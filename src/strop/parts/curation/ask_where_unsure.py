"""Give the rollouts of later rounds to the prompts whose confidence interval they narrow most."""

import heapq
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Curated, Draw, Result, require
from strop.support.students_t import t_quantile


def half_width(deviation: float, num: int, level: float) -> float:
    """Half of the interval of a mean of `num` outcomes: t_{1 - level/2, num-1} s / sqrt(num)."""
    return t_quantile(1 - level / 2, num - 1) * deviation / math.sqrt(num)


def priority(deviation: float, num: int, total: int, level: float, bonus: float) -> float:
    """h(n) - h(n + 1) + bonus sqrt(log(1 + T) / n); without two outcomes the bonus alone."""
    gain = 0.0
    if num >= 2 and deviation > 0:
        gain = half_width(deviation, num, level) - half_width(deviation, num + 1, level)
    return gain + bonus * math.sqrt(math.log(1 + total) / max(num, 1))


def shared_out(
    deviations: list[float], sizes: list[int], budget: int, level: float, bonus: float
) -> list[int]:
    """Extra rollouts of each prompt: each goes to the highest priority; deviations stay fixed."""
    given, total = [0] * len(sizes), sum(sizes)
    # A heap for each number of rollouts, prompts with the largest gain first. Within a heap the
    # bonus is the same, so the best prompt is the first one of some heap.
    waiting: dict[int, list[tuple[float, int]]] = {}

    def enqueue(prompt: int) -> None:
        num = sizes[prompt] + given[prompt]
        gain = priority(deviations[prompt], num, 0, level, 0.0)
        heapq.heappush(waiting.setdefault(num, []), (-gain, prompt))

    for prompt in range(len(sizes)):
        enqueue(prompt)
    for more in range(budget if sizes else 0):
        seen = math.log(1 + total + more)
        *_, num = max(
            (bonus * math.sqrt(seen / max(num, 1)) - heap[0][0], -heap[0][1], num)
            for num, heap in waiting.items()
        )
        _, prompt = heapq.heappop(waiting[num])
        if not waiting[num]:
            del waiting[num]
        given[prompt] += 1
        enqueue(prompt)
    return given


@dataclass(frozen=True)
class AskWhereUnsure:
    """Prompts that are about half solved get the rollouts that clear-cut ones would waste.

        in each of `rounds` rounds after the first: budget * prompts rollouts, one by one to the
        prompt of the highest  h(n) - h(n + 1) + bonus sqrt(log(1 + T) / n)
        h(n) = t_{1 - level/2, n-1} s / sqrt(n);  s: deviation (n - 1) of the prompt's outcomes so
        far, n: its rollouts, T: those of the step;  s is recomputed in each round

    Metrics: budget/mean, budget/least, budget/most (rollouts of a prompt in the end).

    Reads: batch, outcome_B [B] float, group_B [B] int, scored_B [B] bool; state.   Writes: all
    rows; requests draws.
    Source: arXiv 2510.06672 (rollout allocation), from reviews and summaries.
    Differs from the source: its bonus, level, budgets and what T counts were not found.
    Nearest part: ask_while_uncertain, which compares with a prior.
    Edges: equal outcomes -> the bonus alone counts; equal priorities -> the first prompt; unscored
    rollouts count in n, not in s; groups of a refill get none.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"extends_groups"})
    # Rounds after the first. Default: paper (three rounds in all).
    rounds: int = 2
    # Rollouts per prompt, on average, in a round. Default: ours (not stated there).
    budget: int = 4
    # Share of the intervals that miss. Default: ours (0.05, the usual one).
    level: float = 0.05
    # Weight of the bonus on prompts with few rollouts. Default: ours (not stated there).
    bonus: float = 0.05

    def __post_init__(self) -> None:
        require(self, "rounds", low=0)
        require(self, "budget", low=1)
        require(self, "level", low=1e-6, high=0.999)
        require(self, "bonus", low=0.0)

    def init(self) -> dict[str, int]:
        """The initial state: no round of the step has started."""
        return {"round": 0}

    def __call__(
        self, batch: Batch, outcome_B: Tensor, group_B: Tensor, scored_B: Tensor,
        state: dict[str, int],
    ) -> Result:  # fmt: skip
        num, done = batch.size("P"), state["round"]
        sizes = segments.count(group_B, num).tolist()
        everything_B = torch.ones_like(scored_B)
        metrics = {
            "budget/mean": batch.size("B") / max(num, 1),
            "budget/least": float(min(sizes, default=0)),
            "budget/most": float(max(sizes, default=0)),
        }
        if done >= self.rounds or not num:
            return Result(Curated(everything_B, "sure_prompt"), self.init(), metrics)
        std_P = segments.std(outcome_B.double(), group_B, num, scored_B)
        given = shared_out(std_P.tolist(), sizes, self.budget * num, self.level, self.bonus)
        groups = zip(batch["uid_P"].tolist(), batch["draw_P"].tolist(), given, strict=True)
        ask = tuple(
            Draw(uid, more, draw=draw, why=f"{more} rollouts more in round {done + 2}")
            for uid, draw, more in groups
            if more
        )
        curated = Curated(everything_B, "sure_prompt", ask=ask)
        return Result(curated, {"round": done + 1}, metrics)
