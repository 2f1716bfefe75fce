"""Add up the tokens of a rollout, divide by one fixed length, then average over rollouts."""

from dataclasses import dataclass

from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require
from strop.support.errors import UserError


@dataclass(frozen=True)
class AverageByConstantLength:
    """A token's weight does not depend on how long its answer became.

        share_t = denominator_t / (rollouts that count * L);   L = length, or max_length if 0
        without per_rollout: denominator_t / L, so that the step grows with the rollouts

    Usual names: seq-mean-token-sum-norm, and with length 1 seq-mean-token-sum; token-sum-norm and
    token-sum without per_rollout.

    Reads: denominator_T [T] bool, rollout_T [T] int, num_rollouts int, max_length [] int where
    length is 0.   Writes: share_T [T] float.
    Source: arXiv 2503.20783, sec. 3.2 (a constant in place of the response length); code
    verl-project/verl:verl/trainer/ppo/core_algos.py (agg_loss).
    Differs from the source: no; rollouts without a counting token do not count as rollouts.
    Nearest part: average_over_tokens; equal to it without per_rollout when length is the number of
    counting tokens.
    Edges: no token -> all shares 0; neither length nor max_length -> UserError.
    """

    # The constant, tokens; 0: the run's largest number of generated tokens. Default: ours (the
    # paper and TRL use that maximum; a batch's own width would change from step to step).
    length: int = 0
    # Whether the sum is divided by the number of rollouts too. Default: paper (yes).
    per_rollout: bool = True

    def __post_init__(self) -> None:
        require(self, "length", low=0)

    @property
    def unread(self) -> frozenset[str]:
        """The run's longest answer is not read where length is set."""
        return frozenset({"max_length"}) if self.length else frozenset()

    def __call__(
        self,
        denominator_T: Tensor,
        rollout_T: Tensor,
        num_rollouts: int,
        max_length: Tensor | None = None,
    ) -> Result:
        length = self.length or max_length
        if length is None:
            raise UserError(
                "average_by_constant_length needs a length: set its field, or give the run column "
                "max_length (the largest number of generated tokens)"
            )
        share_T = denominator_T.double() / length
        if self.per_rollout:
            counting = (segments.count(rollout_T, num_rollouts, denominator_T) > 0).sum()
            share_T = denominator_T.double() / (counting.clamp(min=1) * length)
        return Result(share_T, metrics={"average/total": share_T.sum()})
