"""Sample one more rollout of a prompt as long as it informs more than it costs."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Curated, Draw, Result, require


def one_more_pays(
    mean_P: Tensor, prior_P: Tensor, size_P: Tensor, cost: float, most: int
) -> Tensor:
    """Where MSE(k) - MSE(k + 1) > cost and k < most [P], MSE(k) = D2 / k / (D2 + 1 / k).

    mean_P of rewards in {-1, 1}, prior_P in [-1, 1], size_P: k; D2 as in shrink_mean_to_prior.
    """
    size_P = size_P.clamp(min=1).double()
    off_P = ((mean_P - prior_P).square() - 1 / size_P).clamp(min=0)
    error_P = off_P / (off_P * size_P + 1)
    next_P = off_P / (off_P * (size_P + 1) + 1)
    return (error_P - next_P > cost) & (size_P < most)


@dataclass(frozen=True)
class AskWhileUncertain:
    """Prompts whose rollouts contradict their prior get more of them, one at a time.

        D2 = max(0, (v - V)^2 - 1 / k), v and V as in shrink_mean_to_prior, k rollouts so far
        one more while MSE(k) - MSE(k + 1) > cost and k < most,  MSE(k) = D2 / k / (D2 + 1 / k)

    Metric: budget/mean (rollouts of a prompt in the end).

    Reads: batch, outcome_B, prior_B [B] float, group_B [B] int, scored_B [B] bool.   Writes: all
    rows; requests draws.
    Source: arXiv 2603.10848 (look-ahead by one rollout).
    Differs from the source: no; known from a note on the paper.
    Nearest part: drop_uniform_groups, which requests other prompts.
    Edges: unscored rollouts count for `most` only; a group without a scored one gets no more.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"extends_groups"})
    # What a rollout costs, in squared reward units. Default: paper (1/256).
    cost: float = 0.0039
    # Most rollouts of a prompt. Default: paper (16).
    most: int = 16

    def __post_init__(self) -> None:
        require(self, "cost", low=0.0)
        require(self, "most", low=1)

    def __call__(
        self, batch: Batch, outcome_B: Tensor, prior_B: Tensor, group_B: Tensor, scored_B: Tensor
    ) -> Result:
        num = batch.size("P")
        mean_P = segments.mean(2 * outcome_B.double() - 1, group_B, num, scored_B)
        prior_P = segments.mean(prior_B.double(), group_B, num)
        size_P = segments.count(group_B, num, scored_B)
        all_P = segments.count(group_B, num)
        more_P = one_more_pays(mean_P, 2 * prior_P - 1, size_P, self.cost, self.most)
        more_P = more_P & (size_P > 0) & (all_P < self.most)
        uids, draws, priors = (x.tolist() for x in (batch["uid_P"], batch["draw_P"], prior_P))
        ask = tuple(
            Draw(uids[p], 1, {"prior_B": priors[p]}, draws[p])
            for p in more_P.nonzero().squeeze(1).tolist()
        )
        everything_B = torch.ones_like(scored_B)
        metrics = {"budget/mean": batch.size("B") / max(num, 1)}
        return Result(Curated(everything_B, "certain_prompt", ask=ask), metrics=metrics)
