"""Pass over a step's rollouts in updates of a fixed size, until the policy has moved too far."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Update, Updates, require


@dataclass(frozen=True)
class SplitIntoRollouts:
    """An update sees the same number of rollouts, however many a selection left.

        the rollouts with gradient in a new order every epoch, `size` of them in each update
        stop when |mean_i sum_{t in i} (logp_old_t - logp_t)| > max_kl over an update's rollouts

    Reads: batch, logp_old_T [T] float; rng.   Writes: updates (tokens_T each).
    Source: arXiv 2502.01600; code apple/ml-loop.
    Differs from the source: the estimate is taken after the update, on its rollouts.
    Nearest part: split_into_minibatches, which splits groups into a given number of updates.
    Edges: the last update of an epoch may be smaller; no rollout with gradient -> one update
    without tokens; max_kl 0 -> never stops and measures nothing.
    """

    # Rollouts of an update. Default: released code (32).
    size: int = 32
    # Passes over the rollouts. Default: released code (2).
    num_epochs: int = 2
    # Change of a rollout's log-probability at which the step ends, nats. Default: released code.
    max_kl: float = 20.0

    def __post_init__(self) -> None:
        require(self, "size", "num_epochs", low=1)
        require(self, "max_kl", low=0.0)

    def __call__(self, batch: Batch, logp_old_T: Tensor, rng: torch.Generator) -> Updates:
        rollout_T, gradient_T = batch["rollout_T"], batch["gradient_T"]
        learns_B = segments.count(rollout_T, batch.size("B"), gradient_T) > 0
        row_N = learns_B.nonzero().squeeze(1)
        after = ("logp_T",) if self.max_kl else ()
        for _ in range(self.num_epochs if row_N.numel() else 1):
            order = torch.randperm(row_N.shape[0], generator=rng).to(row_N.device)
            for part in torch.split(row_N[order], self.size):
                chosen_T = segments.among(rollout_T, part, batch.size("B")) & batch["mask_T"]
                answer = yield Update(chosen_T, after=after)
                measured = answer[1] if answer is not None else {}
                if measured and self._too_far(batch, chosen_T, logp_old_T, measured["logp_T"]):
                    return

    def _too_far(self, batch: Batch, chosen_T: Tensor, logp_old_T: Tensor, logp_T: Tensor) -> bool:
        num, row_N = batch.size("B"), chosen_T.nonzero().squeeze(1)
        rollout_N = batch["rollout_T"][row_N]
        change_N = logp_old_T[row_N] - logp_T.to(logp_old_T.device)[row_N]
        sum_B = segments.total(change_N, rollout_N, num)
        inside_B = segments.count(rollout_N, num) > 0
        one_B = torch.zeros_like(batch["index_B"])
        return float(segments.mean(sum_B, one_B, 1, inside_B).abs()) > self.max_kl
