"""Compare every two candidates of a prompt, and add the share of pairs that each has won."""

from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.method.part import Result
from strop.method.services import Grading, Texts


@dataclass(frozen=True)
class AddPairwiseWins:
    """A candidate is worth its own reward and the share of the others that it beats.

        reward_i <- reward_i + pairs that i has won / pairs of i that were judged
        a pair is judged twice, each candidate once in first place: the reward functions score it
        with the other one's text in their column `opponent`; the larger score wins, in a tie nobody

    All pairs of a prompt's scored candidates are compared, given answers included.
    Metrics: pairs/compared (pairs per group), pairs/frac_unjudged (pairs without both scores).

    Reads: batch (the answers), reward_B [B] float, scored_B [B] bool, group_B [B] int, num_groups
    int, grading, texts.
    Writes: reward_B [B] float.
    Source: arXiv 2601.21343, sec. 2 (quality, added to the score of the target).
    Differs from the source: a pair costs two judgements of one score each (there one verdict).
    Nearest part: rank_in_tournament, whose rank is the whole reward.
    Edges: a pair without both scores is not counted; a candidate without a judged pair -> its own
    reward; unscored rollouts take part in no pair.
    """

    writes: ClassVar[tuple[str, ...]] = ("reward_B",)

    def __call__(
        self,
        batch: Batch,
        reward_B: Tensor,
        scored_B: Tensor,
        group_B: Tensor,
        num_groups: int,
        texts: Texts,
        grading: Grading,
    ) -> Result:
        group, scored = group_B.tolist(), scored_B.tolist()
        members: dict[int, list[int]] = {}
        for row, known in enumerate(scored):
            if known:
                members.setdefault(group[row], []).append(row)
        pairs = [pair for rows in members.values() for pair in combinations(rows, 2)]
        device = group_B.device
        won_B = torch.zeros(len(group), dtype=torch.float64, device=device)
        judged_B = torch.zeros_like(won_B)
        if pairs:
            first_N, second_N = torch.tensor(pairs, device=device).T
            _, answers = texts.decoded(batch)
            order = [row for pair in pairs for row in pair]
            beside = [answers[other] for pair in pairs for other in reversed(pair)]
            taken = batch.take(torch.tensor(order, device=device))
            graded = grading.grade_beside(taken, beside)
            one_N, other_N = graded.outcome_B.to(device).double().reshape(-1, 2).T
            both_N = graded.scored_B.to(device).reshape(-1, 2).all(1)
            for row_N, wins_N in ((first_N, one_N > other_N), (second_N, other_N > one_N)):
                won_B.index_add_(0, row_N, (wins_N & both_N).double())
                judged_B.index_add_(0, row_N, both_N.double())
        failed = len(pairs) - float(judged_B.sum()) / 2
        metrics = {
            "pairs/compared": len(pairs) / max(num_groups, 1),
            "pairs/frac_unjudged": failed / max(len(pairs), 1),
        }
        share_B = (won_B / judged_B.clamp(min=1)).to(reward_B)
        return Result(reward_B + share_B, metrics=metrics)
