"""Score every rollout with the task's verifiers and add their scores up."""

from dataclasses import dataclass
from typing import ClassVar

from strop.batch.batch import Batch
from strop.method.part import Result
from strop.method.services import Grading


@dataclass(frozen=True)
class ScoreWithVerifiers:
    """A rollout's reward is the weighted sum of the reward functions' scores of its text.

        outcome_i = sum_m weight_m * reward_{i,m} over the functions that gave a number

    Where episodes were played, the first component is their own: the sum of reward_K, weight 1.

    Reads: batch (the texts; reward_K of episodes), grading (the reward functions, in their own
    process).
    Writes: reward_BM [B, M] float (NaN: not applicable), outcome_B, reward_B [B] float,
    scored_B [B] bool, exit_B [B] int: why it has that score.
    Source: none; the reward signature is that of TRL's trainers.
    Differs from the source: a verifier that crashes, hangs or raises on an answer gives it
    reward.on_failure; one that fails for a reason outside the answer leaves it unscored.
    Nearest part: none.
    Edges: unscored rollouts have outcome 0 and scored_B false; a restart loses nothing.
    """

    writes: ClassVar[tuple[str, ...]] = ("reward_BM", "outcome_B", "reward_B", "scored_B", "exit_B")

    def __call__(self, batch: Batch, grading: Grading) -> Result:
        graded = grading.grade(batch)
        outcome_B = graded.outcome_B
        columns = (graded.reward_BM, outcome_B, outcome_B, graded.scored_B, graded.exit_B)
        return Result(columns, metrics=graded.metrics)
