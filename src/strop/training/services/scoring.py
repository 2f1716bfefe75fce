"""What the run's policies make of given tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strop.batch import Batch
from strop.errors import UserError
from strop.training.limits import Limits
from strop.training.rollout_gradients import gradient_norms


@dataclass
class RunScoring:
    """The policies by name: "current", and "ref" and "critic" where the run has them."""

    limits: Limits
    policies: dict[str, Any]
    spent: int = 0  # tokens that parts had scored in this step

    @property
    def context(self) -> int:
        """Most tokens of a sequence."""
        return self.limits.context_tokens

    def score(self, batch: Batch, policy: str, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Columns of the batch under the policy "current" or "ref", or values of "critic".

        Raises UserError for one that the run does not have.
        """
        if policy not in self.policies:
            known = ", ".join(self.policies) or "none"
            raise UserError(f"no policy {policy!r} to score with; this run has {known}")
        self.spent += batch.size("T")
        found: dict[str, Tensor] = self.policies[policy].columns(batch, names)
        return found

    @torch.no_grad()
    def hidden(self, batch: Batch) -> Iterator[tuple[list[int], tuple[Tensor, ...]]]:
        """Rollouts, and the current policy's last hidden states [tokens, width] of their tokens.

        One forward pass at a time, without gradient, so that only its states exist.
        """
        policy = self.policies["current"]
        batch = batch.to(policy.device)
        self.spent += batch.size("T")
        for index_B in policy.micro_batches(batch):
            micro = batch.take(index_B)
            states = torch.split(policy.around(micro)[1], micro["length_B"].tolist())
            yield index_B.tolist(), states

    def gradient_norms(self, batch: Batch) -> Tensor:
        """Norm [B] of the gradient of each rollout's summed log-probability, under the policy."""
        return gradient_norms(self.policies["current"], batch)

    def embeddings(self) -> Tensor:
        """The current policy's input embeddings [V, width]."""
        table_VD: Tensor = self.policies["current"].model.get_input_embeddings().weight
        return table_VD.detach()
