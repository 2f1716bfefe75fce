"""Pay less for right answers whose reasoning has a flaw."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require
from strop.method.services import Grading, Log
from strop.parts.reward._measured import measured


@dataclass(frozen=True)
class PenaliseFlawedAnswers:
    """A right answer that was reached by a wrong step is worth less than a sound one.

        reward_i <- reward_i - penalty   where outcome_i >= success and the judge names a step

    The judge is a reward function called `flaw` (weight 0 keeps it out of the sum), or any that
    logs `flaw` with log_extra: the index of the first wrong step, -1 where there is none. A missing
    judgement (None) counts as no flaw. It may skip wrong answers.

    Reads: reward_B, outcome_B [B] float, reward_BM [B, M] float, rollout_uid_B [B] int; grading
    (names), log.   Writes: reward_B [B] float.
    Source: arXiv 2510.22543, eq. 5; code verl-project/verl-recipe (fapo).
    Differs from the source: no.
    Nearest part: rescale_reward; put it first to have rewards of -1 and 1, as in the source.
    Edges: nothing called flaw -> UserError; outcome_B stays as it was, so evaluations do not see
    the penalty.
    """

    # What a flaw costs, reward units. Default: paper (1).
    penalty: float = 1.0
    # Outcome from which an answer is right. Default: ours (1, of rewards in {0, 1}).
    success: float = 1.0
    # Name of the reward function or logged column. Default: ours.
    flaw: str = "flaw"

    def __post_init__(self) -> None:
        require(self, "penalty", low=0.0)
        require(self, "success")

    def __call__(
        self,
        reward_B: Tensor,
        outcome_B: Tensor,
        reward_BM: Tensor,
        rollout_uid_B: Tensor,
        grading: Grading,
        log: Log,
    ) -> Result:
        index_B = measured(
            "penalise_flawed_answers", self.flaw, reward_BM, rollout_uid_B, grading, log
        ).nan_to_num(nan=-1.0)
        right_B = outcome_B >= self.success
        flawed_B = right_B & (index_B >= 0)
        metrics = {"flaws/frac_right": segments.overall(flawed_B, right_B)}
        return Result(torch.where(flawed_B, reward_B - self.penalty, reward_B), metrics=metrics)
