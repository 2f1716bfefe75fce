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
        added: without the tokens of its turn, so that an action's log-probabilities add up

    Reads: denominator_T [T] bool, turn_T [T] int, rollout_K [K] int, num_rollouts int.
    Writes: share_T [T] float.
    Source: arXiv 2509.22576, eq. 2; per_rollout off arXiv 2509.23866 (a turn is a sample); added
    arXiv 2406.11896 (mean of log pi(a | s) over steps).
    Differs from the source: no; turns and rollouts without a counting token do not count.
    Nearest part: average_per_sequence; equal to it when every rollout has one turn.
    Edges: no token -> all shares 0.
    """

    # Whether every rollout weighs the same, else every turn of the update. Default: paper (yes).
    per_rollout: bool = True
    # Whether the tokens of a turn are added up, not averaged. Default: paper (averaged).
    added: bool = False

    def __call__(
        self, denominator_T: Tensor, turn_T: Tensor, rollout_K: Tensor, num_rollouts: int
    ) -> Tensor:
        tokens_K = segments.count(turn_T, rollout_K.shape[0], denominator_T)
        counts_K = tokens_K > 0
        size_K = counts_K.double() if self.added else tokens_K.double()
        if self.per_rollout:
            turns_B = segments.count(rollout_K, num_rollouts, counts_K)
            size_K = size_K * turns_B[rollout_K] * (turns_B > 0).sum()
        else:
            size_K = size_K * counts_K.sum()
        return torch.where(denominator_T, (1.0 / size_K.clamp(min=1))[turn_T], 0.0)
