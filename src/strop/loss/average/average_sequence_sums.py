"""Add up the tokens of a rollout, then average over rollouts."""

from dataclasses import dataclass

from torch import Tensor

from strop import segments


@dataclass(frozen=True)
class AverageSequenceSums:
    """Every token weighs the same; the step grows with the mean length (seq-mean-token-sum).

        share_t = denominator_t / rollouts that count

    Reads: denominator_T [T] bool, rollout_T [T] int, num_rollouts int.   Writes: share_T [T] float.
    Source: code only: verl-project/verl:verl/trainer/ppo/core_algos.py (agg_loss).
    Differs from the source: no; rollouts without a counting token do not count as rollouts.
    Nearest part: average_by_constant_length; equal to it when its length is 1.
    Edges: no token -> all shares 0.
    """

    def __call__(self, denominator_T: Tensor, rollout_T: Tensor, num_rollouts: int) -> Tensor:
        counting = (segments.count(rollout_T, num_rollouts, denominator_T) > 0).sum()
        return denominator_T.double() / counting.clamp(min=1)
