"""Teach the critic in small steps over the rollouts, then the policy once with what it learnt."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch

from strop.batch import Batch
from strop.part import Update, require


@dataclass(frozen=True)
class UpdateCriticFirst:
    """The policy follows advantages of the critic as it has become within the step.

        the rollouts, shuffled, in num_critic_updates mini-batches: one update of the critic each
        then, after warmup_steps, one update of the policy over all rollouts with gradient
        before every update values, targets and advantages are taken anew

    Reads: batch; rng.   Writes: updates (tokens_T and terms each).
    Source: arXiv 2402.19446, algorithm 1; code YifeiZhou02/ArCHer.
    Differs from the source: a step's rollouts are drawn once, not anew for each update.
    Nearest part: split_into_minibatches, which updates both at once.
    Edges: fewer rollouts than updates -> an update each; no rollout with gradient -> the policy
    stays.
    """

    # Updates of the critic in a step. Default: released code (configurations: 50).
    num_critic_updates: int = 50
    # Steps at the beginning in which the critic alone learns. Default: released code (20).
    warmup_steps: int = 20

    def __post_init__(self) -> None:
        require(self, "num_critic_updates", low=1)
        require(self, "warmup_steps", low=0)

    def __call__(self, batch: Batch, rng: torch.Generator) -> Generator[Update, Any, None]:
        rollout_T, mask_T, anew = batch["rollout_T"], batch["mask_T"], ("advantage_T",)
        order = torch.randperm(batch.size("B"), generator=rng).to(rollout_T.device)
        for part in order.tensor_split(self.num_critic_updates):
            if part.numel():
                yield Update(torch.isin(rollout_T, part) & mask_T, before=anew, terms=("critic",))
        gradient_T = batch["gradient_T"]
        if int(batch["step"]) > self.warmup_steps and bool(gradient_T.any()):
            yield Update(gradient_T, before=anew, terms=("policy",))
