"""Train the critic in small steps over the rollouts, then the policy with the new critic."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Update, Updates, require


@dataclass(frozen=True)
class UpdateCriticFirst:
    """The policy follows the advantages of a critic that has already learnt from the same step.

        the rollouts, shuffled, in num_critic_updates mini-batches: one update of the critic each
        then, after warmup_steps, the rollouts with gradient, shuffled, in num_policy_updates: one
        update of the policy each
        before every update, values, targets and advantages are recomputed
        whole: every update uses all these rollouts

    Reads: batch; rng.   Writes: updates (tokens_T and terms each).
    Source: arXiv 2402.19446, algorithm 1; code YifeiZhou02/ArCHer; whole arXiv 2406.11896.
    Differs from the source: a step's rollouts are drawn once, not again for each update.
    Nearest part: split_into_minibatches, which updates both at once.
    Edges: fewer rollouts than updates -> an update each; no rollout with gradient -> the policy
    stays; one policy update uses all rollouts with gradient.
    """

    # Updates of the critic in a step; 0: it stays as it is. Default: released code (50).
    num_critic_updates: int = 50
    # Steps at the beginning in which the critic alone learns. Default: released code (20).
    warmup_steps: int = 20
    # Updates of the policy in a step; 0: it stays. Default: released code (actor epochs: 3).
    num_policy_updates: int = 3
    # Whether an update uses all rollouts, else its share of them. Default: ours (its share).
    whole: bool = False

    def __post_init__(self) -> None:
        require(self, "num_critic_updates", "warmup_steps", "num_policy_updates", low=0)

    @property
    def learners(self) -> tuple[str, ...]:
        """The learners that have updates, or steps, of their own."""
        return ("critic",) if self.num_critic_updates or self.warmup_steps else ()

    def __call__(self, batch: Batch, rng: torch.Generator) -> Updates:
        rollout_T, mask_T, anew = batch["rollout_T"], batch["mask_T"], ("advantage_T",)
        num = batch.size("B")
        order = torch.randperm(batch.size("B"), generator=rng).to(rollout_T.device)
        for part in self._parts(order, self.num_critic_updates):
            if part.numel():
                chosen_T = segments.among(rollout_T, part, num) & mask_T
                yield Update(chosen_T, before=anew, terms=("critic",))
        if int(batch["step"]) <= self.warmup_steps:
            return
        gradient_T = batch["gradient_T"]
        row_N = segments.count(rollout_T, num, gradient_T).nonzero().squeeze(1)
        order = torch.randperm(row_N.shape[0], generator=rng).to(row_N.device)
        for part in self._parts(row_N[order], self.num_policy_updates):
            if part.numel():
                chosen_T = segments.among(rollout_T, part, num) & mask_T
                yield Update(chosen_T, before=anew, terms=("policy",))

    def _parts(self, rows_N: Tensor, num: int) -> tuple[Tensor, ...]:
        """The rollouts of each of `num` updates."""
        return (rows_N,) * num if self.whole or not num else rows_N.tensor_split(num)
