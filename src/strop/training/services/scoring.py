"""Scores given tokens with the run's policies."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.training.learner.rollout_gradients import gradient_norms
from strop.training.learner.step_models import StepModels
from strop.training.settings.limits import Limits


@dataclass
class RunScoring:
    """Reads columns from the models of a step: "current", and "ref" and "critic" if present."""

    limits: Limits
    models: StepModels | None = None  # None: no step has begun
    spent: int = 0  # tokens that parts had scored in this step

    @property
    def context_tokens(self) -> int:
        """Most tokens of a sequence."""
        return self.limits.context_tokens

    @property
    def now(self) -> StepModels:
        """The models of the step that has begun."""
        assert self.models is not None, "no step has begun"
        return self.models

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that the run has."""
        return self.now.names

    def score(self, batch: Batch, policy: str, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Columns of the batch under the policy "current" or "ref", or values of "critic".

        Raises UserError for one that the run does not have.
        """
        found = self.now.columns(policy, batch, names)
        self.spent += batch.size("T")
        return found

    @torch.no_grad()
    def hidden(self, batch: Batch) -> Iterator[tuple[list[int], tuple[Tensor, ...]]]:
        """Rollouts, and the current policy's last hidden states [tokens, width] of their tokens.

        One forward pass at a time, without gradient, so that only its states exist.
        """
        policy = self.now.policy
        batch = batch.to(policy.device)
        self.spent += batch.size("T")
        for index_B in policy.micro_batches(batch):
            micro = batch.take(index_B)
            states = torch.split(policy.around(micro)[1], micro["length_B"].tolist())
            yield index_B.tolist(), states

    def gradient_norms(self, batch: Batch) -> Tensor:
        """Norm [B] of the gradient of each rollout's summed log-probability, under the policy."""
        return gradient_norms(self.now.policy, batch, self.now.temperature)

    def embeddings(self) -> Tensor:
        """The current policy's input embeddings [V, width]."""
        table_VD: Tensor = self.now.policy.whole().model.get_input_embeddings().weight
        return table_VD.detach()
