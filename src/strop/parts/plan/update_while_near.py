"""Pass over a step's rollouts several times; a policy that moved far rests, its critic learns."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Update, Updates, present, require, require_one_of
from strop.parts.plan.split_into_minibatches import SplitIntoMinibatches


@dataclass(frozen=True)
class UpdateWhileNear:
    """The critic makes all updates; the policy only those before it is too far from its start.

        num_epochs * num_minibatches updates, prompt groups shuffled again every epoch; the policy
        takes part while step > warmup_steps and kl <= max_kl
        kl = mean over turns k of (exp(d_k) - 1 - d_k),  d_k = sum_{t in k} (logp_t - logp_old_t)

    kl is of the turns with gradient in the policy's last update, after it; once above, the policy
    rests until the step ends. With the unit "token" it is a mean over tokens, d_t for d_k.

    Reads: batch, rng, logp_old_T [T] float where max_kl is not 0.
    Writes: updates (tokens_T and terms each).
    Source: arXiv 2504.16129; code jwliao-ai/MARFT (appo_trainer.py, tppo_trainer.py).
    Differs from the source: it measures before an update, on that one's rollouts; equal to it with
    one mini-batch.
    Nearest part: split_into_minibatches; equal to it if max_kl and warmup_steps are 0.
    Edges: more mini-batches than groups -> the empty ones are left out; no turn with gradient ->
    kl 0; max_kl 0 -> never rests; nothing is measured then, nor after the last update.
    """

    # Passes over the rollouts. Default: released code (5).
    num_epochs: int = 5
    # Updates of a pass. Default: released code (launch script: 1).
    num_minibatches: int = 1
    # Divergence beyond which the policy rests, nats per unit. Default: released code (1e-3).
    max_kl: float = 1e-3
    # Steps at the beginning in which the critic alone learns. Default: released code (none).
    warmup_steps: int = 0
    # Unit of the divergence: "turn" or "token". Default: released code (of actions).
    unit: str = "turn"

    def __post_init__(self) -> None:
        require(self, "num_epochs", "num_minibatches", low=1)
        require(self, "max_kl", low=0.0)
        require(self, "warmup_steps", low=0)
        require_one_of(self, "unit", ("turn", "token"))

    @property
    def num_updates(self) -> int | None:
        """Most optimiser steps of one training step; None while a schedule sets it."""
        return SplitIntoMinibatches(self.num_epochs, self.num_minibatches).num_updates

    @property
    def unread(self) -> frozenset[str]:
        """The old log-probabilities if nothing is measured."""
        return frozenset() if self._measures(0) else frozenset({"logp_old_T"})

    def _measures(self, number: int) -> bool:
        """Whether the policy is measured after the update of this index: if another one follows."""
        most = self.num_updates
        return self.max_kl != 0 and (most is None or number + 1 < most)

    def __call__(
        self, batch: Batch, rng: torch.Generator, logp_old_T: Tensor | None = None
    ) -> Updates:
        learns = int(batch["step"]) > self.warmup_steps
        split = SplitIntoMinibatches(self.num_epochs, self.num_minibatches)
        for number, update in enumerate(split(batch, rng)):
            chosen_T = update.tokens_T
            if not chosen_T.any():
                continue
            if not learns:
                yield Update(chosen_T, terms=("critic",))
                continue
            answer = yield Update(chosen_T, after=("logp_T",) if self._measures(number) else ())
            measured = answer[1] if answer is not None else {}
            if measured:
                old_T = present(logp_old_T)
                change_T = measured["logp_T"].to(old_T.device) - old_T
                learns = self._moved(batch, chosen_T, change_T) <= self.max_kl

    def _moved(self, batch: Batch, chosen_T: Tensor, change_T: Tensor) -> float:
        """Divergence of the policy from the step's start, nats per turn or per token."""
        row_N = (chosen_T & batch["gradient_T"]).nonzero().squeeze(1)
        change_K = change_T[row_N].double()
        counts_K = torch.ones_like(change_K, dtype=torch.bool)
        if self.unit == "turn":
            turn_N, num = batch["turn_T"][row_N], batch.size("K")
            change_K = segments.total(change_K, turn_N, num)
            counts_K = segments.count(turn_N, num) > 0
        return segments.overall(change_K.expm1() - change_K, counts_K)
