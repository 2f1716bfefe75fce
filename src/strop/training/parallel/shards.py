"""Weights sharded over the processes of a run with FSDP2, and gathered whole where needed.

The loaded model is kept as an empty shell: its weights are gathered (`whole`) for work other than
training, such as sampling, and freed (`release`) before the next training pass. A copy of the model
is sharded and trained. So the engine, checkpoints and adapters see the plain model.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from strop.training.parallel.shard_files import OnDisk

T = TypeVar("T")
WHOLE_BYTES = 1 << 24  # weights up to here are gathered at once, not layer by layer
ONE = "compute"  # the method through which a sharded model runs a given function


def is_sharded(value: object) -> bool:
    """Returns whether a tensor is one process's part of a larger one."""
    return hasattr(value, "to_local")


def local(value: Tensor) -> Tensor:
    """Returns this process's part of a tensor."""
    part: Any = value
    return part.to_local() if is_sharded(value) else value


def whole(value: Any) -> Any:
    """Gather a tensor from the parts of all processes, which call it together; anything else, and
    a tensor that is not sharded, is returned.
    """
    return value.full_tensor() if is_sharded(value) else value


def saved(value: Any) -> Any:
    """Gather the sharded tensors in nested tables and lists, in main memory and only in the first
    process.
    """
    if is_sharded(value):
        full = whole(value)
        return full.cpu() if torch.distributed.get_rank() == 0 else full.new_empty(0)
    if isinstance(value, Mapping):
        return {name: saved(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(saved, value))
    return value


def parted(value: Any, like: Tensor) -> Any:
    """Shard a whole tensor like `like`; a value of another shape stays unchanged."""
    if isinstance(value, OnDisk):
        return value.like(like)
    if not is_sharded(like) or not isinstance(value, Tensor) or is_sharded(value):
        return value
    if value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    like_any: Any = like
    value = value.to(like.device)
    return distribute_tensor(value, like_any.device_mesh, like_any.placements, src_data_rank=None)


@torch.no_grad()
def put(value: Tensor, into: Tensor) -> None:
    """Write a whole tensor into one that may be sharded."""
    into.copy_(parted(value, into))


def load(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Write whole weights by name into a module that may be sharded."""
    own = module.state_dict()
    for name, value in state.items():
        put(value, own[name])


def parted_state(state: Mapping[str, Any], optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Shard an optimiser's whole state like the weights it belongs to."""
    weights = [p for group in optimiser.param_groups for p in group["params"]]
    return {
        **state,
        "state": {
            number: {name: parted(value, weights[number]) for name, value in each.items()}
            for number, each in state["state"].items()
        },
    }


def all_finite(weights: list[Tensor]) -> bool:
    """Returns whether all weights are finite in the parts of all processes."""
    if not weights:
        return True
    parts = [local(weight.detach()) for weight in weights]
    # A finite sum proves that all its terms are finite; an infinite one may have overflowed.
    found = torch.stack([part.sum() for part in parts]).isfinite().all()
    if not found:
        found = torch.stack([part.isfinite().all() for part in parts]).all()
    if any(map(is_sharded, weights)):
        number = found.int()
        torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MIN)
        return bool(number)
    return bool(found)


def compute(model: Any, make: Callable[[], T]) -> T:
    """Call `make` while the model's weights are gathered; its result can be differentiated.

    All processes of a sharded model call this at the same time, each for its own rows.
    """
    if not hasattr(model, ONE):
        return make()
    found: T = getattr(model, ONE)(make)
    if not torch.is_grad_enabled():
        model.reshard()  # FSDP leaves the outermost layer whole for a backward pass
    return found


def shard(model: Any) -> Any:
    """Shard a model's weights over the processes, layer by layer, in place; returns the model.

    A small model's weights are one group: gathering it costs less than gathering layer by layer.
    The gradients of all processes are summed, not averaged: each has the loss of its own rows.
    """
    from torch.distributed.fsdp import (
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    half = any(p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters())
    policy = MixedPrecisionPolicy(
        reduce_dtype=torch.float32 if half else None, cast_forward_inputs=False
    )
    mesh = torch.distributed.init_device_mesh(
        next(model.parameters()).device.type, (torch.distributed.get_world_size(),)
    )
    layers = set[str]()
    if sum(weight.nbytes for weight in model.parameters()) > WHOLE_BYTES:
        layers = set(getattr(model, "_no_split_modules", None) or ())
    options: dict[str, Any] = {
        "mesh": mesh, "mp_policy": policy, "shard_placement_fn": _largest_even
    }  # fmt: skip
    for module in list(model.modules()):
        if type(module).__name__ in layers:
            fully_shard(module, **options)
    setattr(model, ONE, types.MethodType(_compute, model))
    fully_shard(model, **options)
    register_fsdp_forward_method(model, ONE)
    inner = [m for m in model.modules() if isinstance(m, FSDPModule)]
    for module in inner:
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    return model


def _largest_even(weight: nn.Parameter) -> Any:
    """Shard a weight along its second axis when the first is too short for all processes."""
    from torch.distributed.tensor import Shard

    count = torch.distributed.get_world_size()
    if weight.dim() > 1 and weight.shape[0] < count and weight.shape[1] % count == 0:
        return Shard(1)
    return None


def _compute(model: nn.Module, make: Callable[[], T]) -> T:
    return make()


@dataclass
class Shell:
    """The plain model of a run and its sharded copy, which is trained.

    plain: holds weights only between `whole` and `release`. pairs: its weights with their parts.
    """

    plain: nn.Module
    pairs: list[tuple[nn.Parameter, Tensor]]
    filled: bool = True

    @torch.no_grad()
    def whole(self) -> None:
        """Gather the current weights into the plain model. All processes call it."""
        if self.filled:
            return
        for weight, part in self.pairs:
            storage = weight.untyped_storage()
            storage.resize_(weight.numel() * weight.element_size())
            weight.copy_(whole(part.detach()))
        self.filled = True

    def release(self) -> None:
        """Free the plain model's weights."""
        if not self.filled:
            return
        for weight, _ in self.pairs:
            weight.untyped_storage().resize_(0)
        self.filled = False

    @torch.no_grad()
    def take_over(self) -> None:
        """Copy the plain model's weights, such as those of a checkpoint, into the parts."""
        for weight, part in self.pairs:
            put(weight.detach(), part)


def trained_copy(loaded: Any) -> tuple[Any, Any, Shell]:
    """Returns a sharded copy of a loaded model to train, its adapters if any, and the shell around
    the plain model.
    """
    adapter = copy.deepcopy(loaded.adapter) if loaded.adapter is not None else None
    model = adapter.get_base_model() if adapter is not None else copy.deepcopy(loaded.model)
    for weight in loaded.model.parameters():
        weight.data = weight.data.clone()  # a storage of its own, which can be freed
    shard(model)
    parts = dict(model.named_parameters())
    pairs = [(weight, parts[name]) for name, weight in loaded.model.named_parameters()]
    return model, adapter, Shell(loaded.model, pairs)
