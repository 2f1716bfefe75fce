"""Ragged batches for tests: every standard column, with NaN where no value may be read."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from fakes.services import FakeServices
from torch import Tensor

from strop.batch.batch import Batch
from strop.method import part as parts
from strop.method.algorithm import Algorithm
from strop.method.chains import Chains, learnable
from strop.method.part import Result, Use
from strop.training.learner import kernel

NAN = float("nan")


def ragged_batch(
    seed: int = 0,
    groups: Sequence[int] = (3, 1, 4, 2),
    lengths: tuple[int, int] = (1, 6),
    dtype: torch.dtype = torch.float64,
    unscored: Sequence[int] = (4,),
    num_turns: tuple[int, int] = (1, 2),
) -> Batch:
    """Groups of the given sizes; every rollout has a prompt token, then turns of policy tokens.

    A turn has `lengths` (lowest, highest) policy tokens; environment tokens stand between turns.
    Float columns are NaN where mask_T is false, rewards are NaN for the rollouts in `unscored`.
    Rewards are 0 or 1 plus a little noise; log-probabilities of two policies differ by about
    0.3 nats, so that clips of usual width act on some tokens.
    """
    rng = torch.Generator().manual_seed(seed)
    turn, mask, rollout_K, index_K = [], [], [], []
    num_rollouts = sum(groups)
    for rollout in range(num_rollouts):
        for index in range(_integer(num_turns, rng)):
            row = len(rollout_K)
            rollout_K.append(rollout)
            index_K.append(index)
            policy = _integer(lengths, rng)
            turn += [row] * (policy + 1)
            mask += [False] + [True] * policy
    mask_T = torch.tensor(mask)
    batch = Batch(
        {
            "turn_T": torch.tensor(turn),
            "mask_T": mask_T,
            "id_T": torch.randint(0, 32, (len(turn),), generator=rng),
            "origin_T": torch.where(mask_T, 0, 1),
            "version_T": torch.zeros(len(turn), dtype=torch.int64),
            "rollout_K": torch.tensor(rollout_K),
            "index_K": torch.tensor(index_K),
            "group_B": torch.repeat_interleave(torch.arange(len(groups)), torch.tensor(groups)),
            "rollout_uid_B": torch.arange(num_rollouts),
            "truncated_B": torch.rand(num_rollouts, generator=rng) < 0.3,
            "parent_B": torch.full((num_rollouts,), -1),
            "fork_at_B": torch.full((num_rollouts,), -1),
            "uid_P": torch.arange(len(groups)) + 100,
            "draw_P": torch.zeros(len(groups), dtype=torch.int64),
            "step": torch.tensor(3),
            "num_steps": torch.tensor(10),
            "max_length": torch.tensor(2 * lengths[1]),
        }
    )
    return _with_numbers(batch, rng, dtype, unscored)


def _integer(bounds: tuple[int, int], rng: torch.Generator) -> int:
    return int(torch.randint(bounds[0], bounds[1] + 1, (), generator=rng))


def _with_numbers(
    batch: Batch, rng: torch.Generator, dtype: torch.dtype, unscored: Sequence[int]
) -> Batch:
    """The float columns, NaN outside the mask and for unscored rollouts."""
    mask_T, num = batch["mask_T"], batch.size("B")

    def noise(size: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(size, generator=rng, dtype=torch.float64)

    def tokens(values_T: Tensor) -> Tensor:
        return torch.where(mask_T, values_T, NAN).to(dtype)

    size = batch.size("T")
    logp_T = -noise(size).abs() - 0.05
    scored_B = torch.ones(num, dtype=torch.bool)
    scored_B[list(unscored)] = False
    reward_B = (torch.rand(num, generator=rng) < 0.5).double() + noise(num, 0.1)
    reward_B = torch.where(scored_B, reward_B, NAN).to(dtype)
    advantage_B = torch.where(scored_B, noise(num), 0.0).to(dtype)
    scored_T = mask_T & scored_B[batch["rollout_T"]]
    return batch.set(
        logp_T=tokens(logp_T),
        logp_old_T=tokens(logp_T + noise(size, 0.3)),
        logp_ref_T=tokens(logp_T + noise(size, 0.5)),
        logp_behavior_T=tokens(logp_T + noise(size, 0.6)),
        logp_sampler_T=tokens(logp_T + noise(size, 0.6)),
        entropy_T=tokens(noise(size).abs()),
        entropy_old_T=tokens(noise(size).abs()),
        entropy_behavior_T=tokens(noise(size).abs()),
        mean_logp_T=tokens(-noise(size).abs() - 3),
        mean_logp_old_T=tokens(-noise(size).abs() - 3),
        value_T=tokens(noise(size)),
        reward_B=reward_B,
        outcome_B=reward_B.round(),
        scored_B=scored_B,
        advantage_B=advantage_B,
        advantage_T=torch.where(mask_T, advantage_B[batch["rollout_T"]], 0),
        gradient_T=scored_T,
        denominator_T=scored_T,
    )


def flat_batch(
    lengths: Sequence[int], groups: Sequence[int] | None = None, **columns: Any
) -> Batch:
    """One turn a rollout, no prompt tokens, all tokens of the policy: for worked examples.

    `groups` are the prompt groups of the rollouts (default: one group); `columns` override.
    """
    rollout_T = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    group_B = torch.tensor(list(groups) if groups is not None else [0] * len(lengths))
    num_groups = int(group_B.max()) + 1
    everything_T = torch.ones(len(rollout_T), dtype=torch.bool)
    given = {name: torch.as_tensor(value) for name, value in columns.items()}
    for name, value in columns.items():  # floats at full width
        if given[name].is_floating_point():
            given[name] = torch.as_tensor(value, dtype=torch.float64)
    return Batch(
        {
            "turn_T": rollout_T,
            "mask_T": everything_T,
            "gradient_T": everything_T,
            "denominator_T": everything_T,
            "rollout_K": torch.arange(len(lengths)),
            "group_B": group_B,
            "scored_B": torch.ones(len(lengths), dtype=torch.bool),
            "truncated_B": torch.zeros(len(lengths), dtype=torch.bool),
            "uid_P": torch.arange(num_groups),
            "draw_P": torch.zeros(num_groups, dtype=torch.int64),
            "max_length": torch.tensor(max(lengths)),
            **given,
        }
    )


def f64(*values: Any) -> Tensor:
    """A tensor of these at full width."""
    return torch.tensor(values, dtype=torch.float64)


def run(part: Any, batch: Batch, **special: Any) -> Result:
    """The part called with the batch's columns, and its first state where it must have one."""
    special.setdefault("services", FakeServices())
    if any(p.name == "state" and p.default is p.empty for p in parts.parameters(part)):
        special.setdefault("state", part.init())
    return parts.call(Use(part), batch, **special)


def tokens_of(batch: Batch, rollout: int) -> list[int]:
    """Rows of the rollout's policy tokens."""
    here_T = (batch["rollout_T"] == rollout) & batch["mask_T"]
    return here_T.nonzero().squeeze(1).tolist()


def answers(batch: Batch, column: str = "id_T") -> list[list[Any]]:
    """What a column has at the policy's tokens, by rollout."""
    lengths = batch["length_B"].tolist()
    return [a.tolist() for a in torch.split(batch[column][batch["mask_T"]], lengths)]


def members_of(batch: Batch, group: int) -> list[int]:
    """Scored rollouts of the group."""
    here_B = (batch["group_B"] == group) & batch["scored_B"]
    return here_B.nonzero().squeeze(1).tolist()


def slope(function: Callable[[Tensor], Tensor], at_N: Tensor, step: float = 1e-6) -> Tensor:
    """Central differences of a function with one number [] as result, float64."""
    found = torch.zeros_like(at_N)
    for n in range(at_N.numel()):
        moved = torch.zeros_like(at_N)
        moved[n] = step
        found[n] = (function(at_N + moved) - function(at_N - moved)) / (2 * step)
    return found


def gradient(function: Callable[[Tensor], Tensor], at_N: Tensor) -> Tensor:
    """Autograd's gradient of a function with one number [] as result."""
    leaf_N = at_N.clone().requires_grad_()
    (found,) = torch.autograd.grad(function(leaf_N), leaf_N)
    return found


def stages(algorithm: Algorithm, batch: Batch, step: int = 1, num_steps: int = 1) -> Batch:
    """The batch after the advantage and selection stages, as a training step runs them."""
    algorithm = algorithm.at_step(step, num_steps)
    chains = Chains(lambda name, number: torch.Generator().manual_seed(0))
    return chains.select(algorithm.selection, learnable(chains.credit(algorithm.advantage, batch)))


def pushed(
    algorithm: Algorithm, batch: Batch, seed: int = 0
) -> tuple[float, dict[str, Tensor], dict[str, float]]:
    """Loss, dL/d(column) of the current columns, and metrics of an update over the whole batch."""
    terms = algorithm.at_step(1, 1).terms
    prepared = kernel.prepare(terms, batch, torch.Generator().manual_seed(seed))
    columns = {name: batch[name] for name in kernel.current_columns(terms)}
    tally = kernel.Tally()
    rng = torch.Generator().manual_seed(seed)
    loss, found = kernel.adjoints(terms, kernel.View(prepared), columns, tally, rng=rng)
    return float(loss), found, tally.means()


def plain_push(
    loss_of: Callable[..., Tensor], batch: Batch, *names: str
) -> tuple[float, tuple[Tensor, ...]]:
    """Value and gradients by autograd of a loss written out in a test: `loss_of(*columns)`."""
    leaves = [batch[name].clone().requires_grad_() for name in names or ("logp_T",)]
    loss = loss_of(*leaves)
    grads = torch.autograd.grad(loss, leaves)
    return float(loss.detach()), tuple(grad.nan_to_num() for grad in grads)


def learning(batch: Batch) -> list[tuple[int, list[int]]]:
    """(rollout, rows of its tokens with gradient) for every rollout that has any."""
    found = []
    for i in range(batch.size("B")):
        rows = [t for t in tokens_of(batch, i) if batch["gradient_T"][t]]
        if rows:
            found.append((i, rows))
    return found


def clipped(ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    """The loss of the clipped surrogate, as published: max(-A rho, -A clip(rho))."""
    return torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - low, 1 + high))


def assert_same_push(
    algorithm: Algorithm, batch: Batch, loss_of: Callable[..., Tensor], *names: str
) -> None:
    """The algorithm's loss and gradients are those of `loss_of`, to 1e-10."""
    loss, expected = plain_push(loss_of, batch, *names)
    ours, found, _ = pushed(algorithm, batch)
    assert math.isclose(ours, loss, rel_tol=1e-10, abs_tol=1e-12)
    for name, gradient_T in zip(names or ("logp_T",), expected, strict=True):
        assert (gradient_T != 0).any(), name
        torch.testing.assert_close(found[name], gradient_T, atol=1e-10, rtol=1e-10)


def assert_equal_pushes(one: Algorithm, other: Algorithm, batch: Batch) -> None:
    """Both algorithms have the same loss on the batch and the same gradient in `logp_T`."""
    (loss, found, _), (other_loss, expected, _) = pushed(one, batch), pushed(other, batch)
    assert math.isclose(loss, other_loss, rel_tol=1e-12, abs_tol=1e-12)
    assert (expected["logp_T"] != 0).any()
    torch.testing.assert_close(found["logp_T"], expected["logp_T"])


def rows_learning(batch: Batch) -> list[int]:
    """Rows of all tokens with gradient."""
    return [t for _, tokens in learning(batch) for t in tokens]
