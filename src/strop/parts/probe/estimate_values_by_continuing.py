"""Estimate the value of an answer's prefix by completing it several times."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.batch.columns import Column
from strop.method.part import require
from strop.method.services import Grading, Sampling, Texts
from strop.parts.probe._answers import grade, prefixes


@dataclass(frozen=True)
class EstimateValuesByContinuing:
    """The value of a prefix is the mean outcome of fresh continuations of it.

        prefix_value_t = mean of the outcomes of num_continuations answers that begin with all
                         tokens before t, at every cut t;   NaN elsewhere

    Equal prefixes of a prompt share one estimate. A continuation runs at the rollouts'
    temperature, without top-k, top-p or min-p, to the rollouts' own limit.

    Reads: batch (the tokens), cut_T [T] bool, max_length [] int, texts, grading,
    sampling.   Writes: prefix_value_T [T] float.
    Source: arXiv 2505.23564; code only: AIFrameResearch/SPO.
    Differs from the source: continuations without a score are left out.
    Nearest part: back_up_tree_values, which needs no further answers.
    Edges: no continuation scored -> NaN, so no cut; no cut -> nothing is generated; tasks
    of several turns are refused.
    """

    writes: ClassVar[tuple[str, ...]] = ("prefix_value_T",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "prefix_value_T",
            "float",
            "expected outcome before it; NaN: none",
            "reward",
            random="uniform",
        ),
    )
    facts: ClassVar[frozenset[str]] = frozenset({"grades_one_answer", "samples_again"})
    # Continuations of each prefix. Default: paper (9 for GSM8K, 4 for MATH).
    num_continuations: int = 9
    # Outcome of a continuation that was cut off. Default: released code (0).
    unfinished: float = 0.0

    def __post_init__(self) -> None:
        require(self, "num_continuations", low=1)
        require(self, "unfinished")

    def __call__(
        self,
        batch: Batch,
        cut_T: Tensor,
        max_length: Tensor,
        texts: Texts,
        grading: Grading,
        sampling: Sampling,
        rng: torch.Generator,
    ) -> Tensor:
        places = prefixes(batch, cut_T, after=False)
        distinct = list(dict.fromkeys(places))
        value_T = torch.full(cut_T.shape, torch.nan, device=cut_T.device)
        if not distinct:
            return value_T
        found = self._values(distinct, int(max_length), texts, grading, sampling, rng)
        values = dict(zip(distinct, found, strict=True))
        value_T[cut_T] = torch.tensor([values[place] for place in places], device=cut_T.device)
        return value_T

    def _values(
        self, distinct: list[tuple[int, int, tuple[int, ...]]], limit: int, texts: Texts,
        grading: Grading, sampling: Sampling, rng: torch.Generator,
    ) -> list[float]:  # fmt: skip
        """Mean outcome of each prefix; NaN if no continuation has a score."""
        num = len(distinct)
        seeds = iter(torch.randint(2**62, (num * self.num_continuations,), generator=rng).tolist())
        finished = sampling.sample(
            [
                sampling.request(ids, limit - length, next(seeds))
                for _, length, ids in distinct
                for _ in range(self.num_continuations)
            ]
        )
        group_N = torch.arange(num).repeat_interleave(self.num_continuations)
        answers = []
        for group, found in zip(group_N.tolist(), finished, strict=True):
            _, length, ids = distinct[group]
            answers.append((*ids[len(ids) - length :], *found.ids))
        uids = [distinct[group][0] for group in group_N.tolist()]
        outcome_N, scored_N = grade(texts, grading, uids, answers, group_N.tolist())
        scored_N = scored_N & ~torch.tensor([found.failed for found in finished])
        cut_off_N = torch.tensor([found.ended == "length" for found in finished])
        outcome_N = torch.where(cut_off_N, self.unfinished, outcome_N)
        mean_N = segments.mean(outcome_N, group_N, num, scored_N)
        mean_N[segments.count(group_N, num, scored_N) == 0] = torch.nan
        return mean_N.tolist()
