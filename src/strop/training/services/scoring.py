"""Scores given tokens with the run's policies, and measures the norm of each rollout's gradient."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from strop.batch.batch import Batch, to_padded
from strop.support.linear import as_torch_does
from strop.training.learner.policy import Policy
from strop.training.learner.step_models import StepModels
from strop.training.services.texts import Limits


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


# Torch's errors for an operation that it cannot map over rollouts.
REFUSED = re.compile(r"vmap|functorch|batching rule|data pointer", re.IGNORECASE)
MOST_BYTES = 512 * 2**20  # of gradients and logits that are held at once


def gradient_norms(policy: Policy, batch: Batch, temperature: float) -> Tensor:
    """Norm [B] of the gradient of each rollout's summed log-probability, taken at a temperature.

    Several rollouts are computed at once where their gradients fit into memory and the model can be
    mapped over, else one by one; the numbers are the same. No gradient is left behind. Rollouts
    without policy tokens have norm 0.
    """
    policy = policy.whole()
    batch = batch.to(policy.device)
    norm_B = torch.zeros(batch.size("B"), dtype=torch.float64, device=policy.device)
    wanted = batch["length_B"].nonzero().squeeze(1)
    wanted = wanted[torch.argsort(batch["size_B"][wanted], stable=True)]
    if not wanted.numel():
        return norm_B
    size = _at_once(policy, int(batch["size_B"][wanted[-1]]))
    # A model in training has checkpoints; a rollout of several contexts is several sequences.
    one = batch.contexts()[1] == batch.size("B")
    together = size > 1 and not policy.model.training and one
    for index in torch.split(wanted, size if together else 1):
        found = _mapped(policy, batch.take(index), temperature) if together else None
        if found is None:  # this family's forward pass cannot be mapped over
            together = False
            alone = [_alone(policy, batch.take(row), temperature) for row in index.split(1)]
            found = torch.stack(alone)
        norm_B[index] = found
    return norm_B


def _at_once(policy: Policy, longest: int) -> int:
    """Rollouts whose gradients, and logits in two copies, fit into `MOST_BYTES`."""
    trained = sum(p.numel() * p.element_size() for p in policy.parameters())
    logits = 8 * longest * policy.head(1.0).weight.shape[0]
    return max(1, MOST_BYTES // (trained + logits))


def _mapped(policy: Policy, batch: Batch, temperature: float) -> Tensor | None:
    """Norms [B] of all rollouts in one mapped pass; None where the model does not allow it."""
    ids_BL, learns_BL = (
        to_padded(each_T, batch["rollout_T"], batch.size("B"))
        for each_T in (batch["id_T"], batch["mask_T"].long())
    )
    weights = {n: p.detach() for n, p in policy.model.named_parameters() if p.requires_grad}

    def summed(weights: Mapping[str, Tensor], ids_L: Tensor, learns_L: Tensor) -> Tensor:
        inputs = {"input_ids": ids_L[None], "use_cache": False}
        logits = functional_call(policy.model, dict(weights), kwargs=inputs).logits[0, :-1]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        logp_L = logits.log_softmax(-1).gather(1, ids_L[1:, None]).squeeze(1)
        return (logp_L * learns_L[1:]).sum()

    try:
        with sdpa_kernel(SDPBackend.MATH), as_torch_does():  # what can be mapped over
            grads: dict[str, Tensor] = vmap(grad(summed), (None, 0, 0))(weights, ids_BL, learns_BL)
    except (RuntimeError, NotImplementedError) as error:
        if not REFUSED.search(str(error)):  # such as out of memory: falling back would hide it
            raise
        return None
    return (
        torch.stack([g.flatten(1).double().square().sum(1) for g in grads.values()]).sum(0).sqrt()
    )


def _alone(policy: Policy, batch: Batch, temperature: float) -> Tensor:
    """The norm [] of one rollout, through the chunked head."""

    def ones(rows: slice, columns: dict[str, Tensor]) -> Mapping[str, Tensor]:
        return {"logp_T": torch.ones_like(columns["logp_T"])}

    policy.push(batch, ("logp_T",), ones, False, temperature)
    parameters: list[Any] = list(policy.parameters())
    norm: Tensor = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    for parameter in parameters:
        parameter.grad = None
    return norm.double()
