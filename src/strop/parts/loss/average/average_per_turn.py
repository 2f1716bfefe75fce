"""Let every turn of a rollout weigh the same, and every rollout of the update."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments


@dataclass(frozen=True)
class AveragePerTurn:
    """Tokens of long turns weigh less than those of short ones, as do turns of long episodes.

        share_t = denominator_t / (tokens of its turn that count * turns of its rollout that count
                                   * rollouts that count)
        per_rollout off: ... / (tokens of its turn that count * all turns that count)

    Reads: denominator_T [T] bool, turn_T [T] int, rollout_K [K] int, num_rollouts int.
    Writes: share_T [T] float.
    Source: arXiv 2509.22576, eq. 2; per_rollout off arXiv 2509.23866 (a turn is a sample).
    Differs from the source: no; turns and rollouts without a counting token do not count.
    Nearest part: average_per_sequence; equal to it when every rollout has one turn.
    Edges: no token -> all shares 0.
    """

    # Whether every rollout weighs the same, else every turn of the update. Default: paper (yes).
    per_rollout: bool = True

    def __call__(
        self, denominator_T: Tensor, turn_T: Tensor, rollout_K: Tensor, num_rollouts: int
    ) -> Tensor:
        tokens_K = segments.count(turn_T, rollout_K.shape[0], denominator_T)
        if not self.per_rollout:
            turns = (tokens_K > 0).sum().clamp(min=1)
            each_K = 1.0 / (tokens_K.clamp(min=1).double() * turns)
            return torch.where(denominator_T, each_K[turn_T], 0.0)
        turns_B = segments.count(rollout_K, num_rollouts, tokens_K > 0)
        rollouts = (turns_B > 0).sum().clamp(min=1)
        size_K = tokens_K.clamp(min=1).double() * turns_B.clamp(min=1)[rollout_K] * rollouts
        return torch.where(denominator_T, (1.0 / size_K)[turn_T], 0.0)
