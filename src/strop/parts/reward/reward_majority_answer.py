"""Learn without labels: the answer that most rollouts of a prompt give counts as right."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.method.part import Result, require_one_of
from strop.method.services import Grading, Texts
from strop.support.errors import UserError


@dataclass(frozen=True)
class RewardMajorityAnswer:
    """A rollout is rewarded for agreeing with the other rollouts of its prompt.

        reward_i = 1 if answer_i is the most frequent answer of the scored rollouts of its group
        (with leave_one_out: of the others), else 0
        form="share": reward_i = log p, p the share of answer_i among the answers of its group;
        minus the group's mean, which is -H, and not divided, it follows -grad H: the entropy of
            answers falls; the vote is the hard form of this

    Ties go to the answer that was given first. A run needs no reward function. Those that are given
    still run: their scores stay in outcome_B and in the log, but nothing is learned from them.
    Metrics: majority/share (votes for the majority), /right (majorities that they call right).

    Reads: batch (the texts), group_B [B] int, scored_B [B] bool, outcome_B [B] float, texts,
    grading (what a final answer is).   Writes: reward_B [B] float.
    Source: arXiv 2504.16084 (majority votes as labels, TTRL); 2503.11650 (entropy of clusters).
    Differs from the source: no; form="share" is derived from the abstract of the second.
    Nearest part: score_with_verifiers, which reads the labels.
    Edges: no answer -> no vote and 0, with form="share" the group's mean; a lone rollout agrees
    with itself, or with nobody under leave_one_out; unscored -> no vote.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"order_matters", "votes"})
    # Whether a rollout's own vote does not count for it. Default: paper (it counts).
    leave_one_out: bool = False
    # What agreement pays: "majority", or "share" by how many agree. Default: paper.
    form: str = "majority"

    def __post_init__(self) -> None:
        require_one_of(self, "form", ("majority", "share"))
        if self.form == "share" and self.leave_one_out:
            raise UserError(
                "reward_majority_answer: a share counts a rollout's own vote: set leave_one_out off"
            )

    def __call__(
        self,
        batch: Batch,
        group_B: Tensor,
        scored_B: Tensor,
        outcome_B: Tensor,
        texts: Texts,
        grading: Grading,
    ) -> Result:
        answers = grading.final_answers(texts.decoded(batch)[1])
        groups, scored = group_B.tolist(), scored_B.tolist()
        read = [answer if counts else None for answer, counts in zip(answers, scored, strict=True)]
        ballots: dict[int, dict[int, str]] = {group: {} for group in groups}
        for row, (group, answer) in enumerate(zip(groups, read, strict=True)):
            if answer is not None:
                ballots[group][row] = answer
        votes = {group: Counter(each.values()) for group, each in ballots.items()}
        agrees = [
            answer is not None and self._wins(votes[group], ballots[group], row)
            for row, (group, answer) in enumerate(zip(groups, read, strict=True))
        ]
        paid: list[float] = [float(each) for each in agrees]
        if self.form == "share":
            paid = [_log_share(votes[group], a) for group, a in zip(groups, read, strict=True)]
        metrics = {"majority/share": sum(agrees) / max(sum(v.total() for v in votes.values()), 1)}
        if grading.can_grade:
            metrics["majority/right"] = _right(votes, groups, answers, outcome_B)
        return Result(torch.tensor(paid, dtype=outcome_B.dtype), metrics=metrics)

    def _wins(self, votes: Counter[str], ballots: dict[int, str], row: int) -> bool:
        if self.leave_one_out:  # counted anew: a tie goes to the first answer of the others
            votes = Counter(answer for other, answer in ballots.items() if other != row)
        return bool(votes) and votes.most_common(1)[0][0] == ballots[row]


def _right(
    votes: dict[int, Counter[str]], groups: list[int], answers: list[str | None], outcome_B: Tensor
) -> float:
    """The share of the groups with a vote whose majority the reward functions call right."""
    chosen = {group: each.most_common(1)[0][0] for group, each in votes.items() if each}
    right = {
        group
        for group, answer, outcome in zip(groups, answers, outcome_B.tolist(), strict=True)
        if answer is not None and chosen.get(group) == answer and outcome >= 1
    }
    return len(right) / max(len(chosen), 1)


def _log_share(votes: Counter[str], answer: str | None) -> float:
    """log p of an answer; without one the mean over the answers that were read, so that nothing is
    learnt from those that cannot be read.
    """
    total = votes.total()
    if answer is not None:
        return math.log(votes[answer] / total)
    return sum(n / total * math.log(n / total) for n in votes.values()) if total else 0.0
