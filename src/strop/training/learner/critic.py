"""The critic as a learner: small value heads on the policy's hidden states.

The value of token t is read from the policy's hidden state before it, as its log-probability is;
heads named `value_after_*` read the state after it, which knows the whole action that it ends. No
gradient flows from the heads into the policy. Slow copies of the heads trail behind them.
"""

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from strop.batch.batch import Batch
from strop.batch.columns import sees_token, slow_value
from strop.method.schedule import Schedule, rate_at
from strop.support.errors import UserError
from strop.training.learner.policy import AdjointsOf, Around, Policy, clipped_step
from strop.training.parallel import shards


class ValueHeads(nn.Module):
    """hidden [N, width] -> values [N] by column: normalise, a hidden layer and an output each.

    The outputs' weights start at 0, and so do all values. The hidden layers' weights are drawn from
    `seed`, separately for each head, so two heads that learn the same differ.
    """

    def __init__(
        self, columns: Sequence[str], width: int, hidden_size: int, dtype: torch.dtype, seed: int
    ) -> None:
        super().__init__()
        self.columns = tuple(columns)
        rng = torch.Generator().manual_seed(seed)
        num = len(self.columns)
        drawn = torch.randn(num, hidden_size, width, generator=rng) / math.sqrt(width)
        self.inner = nn.Parameter(drawn.to(dtype))
        self.inner_bias = nn.Parameter(torch.zeros(num, hidden_size, dtype=dtype))
        self.outer = nn.Parameter(torch.zeros(num, hidden_size, dtype=dtype))
        self.outer_bias = nn.Parameter(torch.zeros(num, dtype=dtype))

    def forward(self, before: Tensor, after: Tensor) -> dict[str, Tensor]:
        """Values [N] of every head from the states before and after the tokens."""
        wide = [
            layer_norm(hidden.to(self.inner.dtype), hidden.shape[-1:]) for hidden in (before, after)
        ]
        found = {}
        for head, column in enumerate(self.columns):
            state = wide[sees_token(column)]
            inner = nn.functional.silu(state @ self.inner[head].T + self.inner_bias[head])
            found[column] = inner @ self.outer[head] + self.outer_bias[head]
        return found


class Heads(NamedTuple):
    """Value heads, and their slow copies, if any."""

    now: ValueHeads
    slow: ValueHeads | None = None


@dataclass
class Critic:
    """Value heads on a policy's trunk, with an optimiser of their own.

    lr: learning rate, a number or a schedule. The heads follow the policy as it is now: a value is
    computed under the policy's current weights. each: the heads by the name of the policy's
    adapter, "" for a policy without several. Slow copies of the heads, if there are any, move after
    every update: slow <- target_tau * heads + (1 - target_tau) * slow.
    """

    policy: Policy
    each: dict[str, Heads]
    optimiser: torch.optim.Optimizer
    lr: float | Schedule
    max_grad_norm: float = 1.0
    target_tau: float = 0.0

    @property
    def heads(self) -> ValueHeads:
        """The heads of the adapter that the policy's passes run under."""
        return self.each[self.policy.acting].now

    @property
    def slow(self) -> ValueHeads | None:
        """Their slow copies."""
        return self.each[self.policy.acting].slow

    def parameters(self) -> Iterator[nn.Parameter]:
        """The weights of all heads."""
        return itertools.chain.from_iterable(own.now.parameters() for own in self.each.values())

    @property
    def current(self) -> tuple[str, ...]:
        """The columns of its heads."""
        return self.heads.columns

    @property
    def slow_columns(self) -> tuple[str, ...]:
        """The columns of their slow copies."""
        return tuple(map(slow_value, self.current)) if self.slow is not None else ()

    @torch.no_grad()
    def columns(self, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
        """Values [T] of every policy token, 0 elsewhere, without gradient. Raises UserError."""
        known = (*self.current, *self.slow_columns)
        if unknown := sorted(set(names) - set(known)):
            raise UserError(
                f"the critic computes no {', '.join(unknown)}; it has {', '.join(known)}"
            )
        batch = batch.to(self.policy.device)
        empty = torch.zeros(
            batch.size("T"), dtype=self.heads.inner.dtype, device=self.policy.device
        )
        found = {name: empty.clone() for name in names}
        for micro, rows, counts in self.policy.passes(batch):
            around = self.policy.around(micro)
            values = _values(self.heads, around)
            if self.slow is not None:
                copied = _values(self.slow, around)
                values |= {slow_value(name): value for name, value in copied.items()}
            for name in names if counts else ():
                found[name][rows[micro["mask_T"]]] = values[name]
        return self.policy.ranks.total(found)

    def push(
        self, micro: Batch, names: Sequence[str], adjoints_of: AdjointsOf,
        around: Around | None = None,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Forward, adjoints and backward of one micro-batch; returns its columns.

        around: the policy's states before and after the tokens, where they are known. Heads are
        small, so all rows are seen at once whatever the terms' scope.
        """
        with torch.no_grad():
            around = around or self.policy.around(micro)
        values = _values(self.heads, around)
        known = {name: values[name].detach() for name in names}
        adjoints = adjoints_of(slice(None), known)
        pushed = [values[name] for name in names]
        torch.autograd.backward(pushed, [adjoints[name].to(values[name].dtype) for name in names])
        return known

    def lr_at(self, batch: Batch) -> float:
        """The learning rate at the batch's step."""
        return rate_at(self.lr, int(batch["step"]), int(batch["num_steps"]))

    def update(self, lr: float) -> dict[str, float]:
        """One optimiser step at learning rate `lr`. Raises RunStopped, see `clipped_step`."""
        norm = clipped_step(self.optimiser, lr, self.max_grad_norm, "critic.lr")
        if self.slow is not None:
            self._follow(self.slow)
        return {"critic/grad_norm": norm, "critic/learning_rate": lr}

    @torch.no_grad()
    def _follow(self, slow: ValueHeads) -> None:
        """Move the slow copies towards the heads."""
        for copied, weight in zip(slow.parameters(), self.heads.parameters(), strict=True):
            copied.lerp_(weight, self.target_tau)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint: the heads' names, weights, slow copies and optimiser; sharded
        where the heads are.
        """
        return {
            "columns": list(self.current),
            "optimiser": self.optimiser.state_dict(),
            **self._weights(),
        }

    def _weights(self) -> dict[str, dict[str, Tensor]]:
        """The weights of the heads and of their slow copies; an adapter's name is their prefix."""
        found: dict[str, dict[str, Tensor]] = {}
        for name, own in self.each.items():
            for kind, module in (("heads", own.now), ("slow", own.slow)):
                if module is not None:
                    weights = module.state_dict(prefix=f"{name}." if name else "")
                    found.setdefault(kind, {}).update(weights)
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state. Raises UserError when it belongs to other heads."""
        own = self._weights()
        shapes = {name: value.shape for name, value in own["heads"].items()}
        saved = {name: value.shape for name, value in state["heads"].items()}
        if tuple(state["columns"]) != self.current or saved != shapes:
            raise UserError(
                f"the checkpoint's critic has the heads {', '.join(state['columns'])} of other "
                f"sizes than this run's ({', '.join(self.current)}): keep the method, the model "
                "and critic.hidden_size"
            )
        if own.keys() != state.keys() & {"heads", "slow"}:
            raise UserError("the checkpoint is of a method with other slow copies: keep the method")
        for kind, weights in own.items():
            for name, weight in weights.items():
                shards.put(state[kind][name], weight)
        self.optimiser.load_state_dict(shards.parted_state(state["optimiser"], self.optimiser))


def _values(heads: ValueHeads, around: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Values of every head from the states before and after the tokens."""
    return shards.compute(heads, lambda: heads.forward(*around))


def make_critic(
    columns: Sequence[str],
    policy: Policy,
    *,
    hidden_size: int,
    lr: float | Schedule,
    betas: tuple[float, float],
    max_grad_norm: float,
    seed: int,
    target_tau: float = 0.0,
) -> Critic:
    """A critic with one head per column on the policy's trunk, for each adapter where the policy
    has several; hidden_size 0: as wide as the trunk.

    Its weights are float32 or wider, whatever the model's are. target_tau 0: no slow copies.
    """
    weight = policy.head(1.0).weight
    width = weight.shape[1]
    dtype = torch.promote_types(weight.dtype, torch.float32)
    each: dict[str, Heads] = {}
    for name in policy.adapters or ("",):
        heads = ValueHeads(columns, width, hidden_size or width, dtype, seed).to(policy.device)
        slow = copy.deepcopy(heads).requires_grad_(False) if target_tau else None
        policy.ranks.shard(heads)
        if slow is not None:
            policy.ranks.shard(slow)
        each[name] = Heads(heads, slow)
    weights = itertools.chain.from_iterable(own.now.parameters() for own in each.values())
    optimiser = torch.optim.AdamW(weights, lr=0.0, betas=betas, weight_decay=0.0)
    return Critic(policy, each, optimiser, lr, max_grad_norm, target_tau)


ROW = "update:row_B"  # the rollout's row in the update


@dataclass
class CriticInPass:
    """Learns from the states of the passes that an update of the policy makes anyway.

    prepared: all rows of the update. left_B: the rollouts that give the heads a gradient and were
    in no pass yet. asked: computes the adjoints of some rows' columns.
    """

    critic: Critic
    names: tuple[str, ...]
    prepared: Batch
    left_B: Tensor
    asked: Callable[[Batch], AdjointsOf]

    def seen(self, micro: Batch, around: Around) -> None:
        """Learn from the rollouts of a pass of the policy, whose states these are."""
        rows_B = micro[ROW]
        if not bool(self.left_B[rows_B].any()):
            return
        self.left_B[rows_B] = False
        own = self.prepared.take(rows_B)
        self.critic.push(own, self.names, self.asked(own.narrow(own["mask_T"])), around)

    def left(self) -> Batch:
        """Returns the rows that have not been learned from yet."""
        return self.prepared.keep(self.left_B)
