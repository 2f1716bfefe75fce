"""Linear layers and norms in float32 on a CPU, by operators that are faster than torch's defaults.

torch uses Intel's MKL for products, which reaches less than half the speed of other makers'
processors; oneDNN, which torch includes and uses for bfloat16, adapts to the processor. On an AMD
EPYC it is about twice as fast on many rows.

Root mean square norms, x w / sqrt(mean(x^2) + eps), become one operator in place of the six in
layers of transformers, without returning to Python between them: the same bits, for a small batch
in two thirds to four fifths of the time (docs/evidence/engine.md has both). On a GPU training uses
it too, since each of the six reads and writes all states: in bfloat16 it rounds once, at the end,
where the layers also round before they multiply by w.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

# oneDNN and torch's layer around it cache objects for each shape, 1024 by default. Rows differ from
# step to step, and the cached objects lie between freed large blocks, which then cannot be joined:
# the process grew by megabytes a step. The variables are read at the first product.
KEPT_SHAPES = "64"
for _name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_name, KEPT_SHAPES)

LEAST = 1 << 20  # multiplications; below, the call costs more than it gains
BLOCK_BYTES = 4 * 2**20  # of a product that is added to existing values
PACKED_ROWS = 16  # for which weights are packed; a hint
_plain = _packed = False


def linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """x W^T + b, differentiable any number of times. x [..., I]; the result [..., O]."""
    if not _suits(x, weight_OI):
        return nn.functional.linear(x, weight_OI, bias_O)
    if bias_O is not None:
        return linear(x, weight_OI) + bias_O
    x_NI = x.reshape(-1, x.shape[-1])
    learns = torch.is_grad_enabled() and (x.requires_grad or weight_OI.requires_grad)
    found_NO: Tensor = (_Product.apply if learns else product)(x_NI, weight_OI)
    return found_NO.view(*x.shape[:-1], len(weight_OI))


def add_product(
    out_NO: Tensor, x_NI: Tensor, weight_OI: Tensor, onednn: bool = True, keep: bool = True
) -> None:
    """out += x W^T, in place and without gradient; without `keep`, out = x W^T."""
    if not (onednn and _suits(x_NI, weight_OI)):
        out_NO.addmm_(x_NI, weight_OI.T, beta=int(keep))
        return
    rows = max(1, BLOCK_BYTES // (4 * len(weight_OI)))  # oneDNN writes to memory of its own
    for x_nI, out_nO in zip(x_NI.split(rows), out_NO.split(rows), strict=True):
        found_nO = product(x_nI, weight_OI)
        out_nO.add_(found_nO) if keep else out_nO.copy_(found_nO)


@contextlib.contextmanager
def as_torch_does() -> Iterator[None]:
    """Use torch's own operators inside the context, as needed by transforms such as vmap."""
    global _plain
    before, _plain = _plain, True
    try:
        yield
    finally:
        _plain = before


class Linear(nn.Linear):
    """torch's layer with the product above.

    packed: the weight in the layout that oneDNN reads fastest; used inside `with_packed` only.
    """

    packed: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        packed = self.packed
        # a packed weight is known to suit
        if (
            packed is None or not _packed or _plain or input.dtype != torch.float32
            or input.numel() * self.out_features < LEAST or torch.is_grad_enabled()
        ):  # fmt: skip
            return linear(input, self.weight, self.bias)
        found = product(input.reshape(-1, input.shape[-1]), packed)
        found = found.view(*input.shape[:-1], self.out_features)
        return found if self.bias is None else found + self.bias


def use_in(model: nn.Module) -> None:
    """Make all of the model's plain linear layers use the product above."""
    if not torch.backends.mkldnn.is_available():
        return
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear


def packed(weight_OI: Tensor) -> Tensor:
    """The weight in the layout that oneDNN reads fastest, for `product`."""
    return torch.ops.mkldnn._reorder_linear_weight(weight_OI, PACKED_ROWS)


def pack(model: nn.Module) -> None:
    """Store a second, packed copy of the weights of the model's `Linear` layers, for few rows."""
    for module in model.modules():
        # the weight may also be sharded over several processes, or be of another type
        if isinstance(module, Linear) and type(module.weight) is nn.Parameter:
            weight_OI = module.weight.detach()
            if weight_OI.device.type == "cpu" and weight_OI.dtype == torch.float32:
                module.packed = packed(weight_OI)


def unpack(model: nn.Module) -> None:
    """Drop the packed copies, for example because weights change."""
    for module in model.modules():
        if isinstance(module, Linear):
            module.packed = None


@contextlib.contextmanager
def with_packed() -> Iterator[None]:
    """Use packed weights inside the context, without gradient, in layers that have them."""
    global _packed
    before, _packed = _packed, True
    try:
        yield
    finally:
        _packed = before


def product(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """oneDNN's x W^T + b without gradient; the weight may be `packed`."""
    return torch.ops.mkldnn._linear_pointwise(x_NI, weight_OI, bias_O, "none", [], "")


def _suits(x: Tensor, weight_OI: Tensor) -> bool:
    size: int = x.numel() * weight_OI.shape[0]
    if size < LEAST or _plain or x.dtype != torch.float32 or weight_OI.dtype != torch.float32:
        return False
    return x.device.type == "cpu" and torch.backends.mkldnn.is_available()


class _Product(torch.autograd.Function):
    """x_NI W_OI^T. The gradients are products of the same kind."""

    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_OI: Tensor) -> Tensor:
        ctx.save_for_backward(x_NI, weight_OI)
        return product(x_NI, weight_OI)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x_NI, weight_OI = ctx.saved_tensors
        (grad_NO,) = grads
        grad_x_NI = linear(grad_NO, weight_OI.T) if ctx.needs_input_grad[0] else None
        grad_weight_OI = linear(grad_NO.T, x_NI.T) if ctx.needs_input_grad[1] else None
        return grad_x_NI, grad_weight_OI


def fuse_norms(model: nn.Module) -> None:
    """Make the model's norms use one operator without gradient, in float32, where bits agree."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm") and _fuses(module):
            module.forward = functools.partial(_fused, module)


def undo_norms(model: nn.Module) -> None:
    """Restore the norms, for example before the model is handed to other code."""
    for module in model.modules():
        if _is_fused(module):
            del module.forward


def use_norms(model: nn.Module) -> None:
    """Make norms of a model on a GPU use torch's operator, with gradient too, where the results
    agree within rounding.
    """
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm") and _agrees(module):
            module.forward = functools.partial(_norm_anywhere, module)


def is_norm(module: nn.Module) -> bool:
    """Whether `use_norms` has changed this module."""
    own = vars(module).get("forward")
    return isinstance(own, functools.partial) and own.func is _norm_anywhere


def _norm_anywhere(module: Any, hidden: Tensor) -> Tensor:
    if hidden.dtype != module.weight.dtype:
        return type(module).forward(module, hidden)
    return _norm(module, hidden)


def _agrees(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    if type(weight) is not nn.Parameter or not hasattr(module, "variance_epsilon"):
        return False
    if not _on_gpu(weight) or "forward" in vars(module):
        return False
    with torch.no_grad():
        trial = torch.linspace(-3, 2, 2 * len(weight), device=weight.device).sin()
        trial = trial.view(2, -1).to(weight.dtype)
        own, found = module(trial), _norm(module, trial)
        near = 4 * torch.finfo(weight.dtype).eps * own.abs().max()
        return found.dtype == own.dtype and bool((found - own).abs().max() <= near)


def _on_gpu(weight: Tensor) -> bool:
    return weight.device.type == "cuda"


def _is_fused(module: nn.Module) -> bool:
    own = vars(module).get("forward")
    return isinstance(own, functools.partial) and own.func is _fused


def _fused(module: Any, hidden: Tensor) -> Tensor:
    if torch.is_grad_enabled() or hidden.dtype != torch.float32:
        return type(module).forward(module, hidden)
    return _norm(module, hidden)


def _norm(module: Any, hidden: Tensor) -> Tensor:
    weight = module.weight
    return nn.functional.rms_norm(hidden, weight.shape, weight, module.variance_epsilon)


def _fuses(module: Any) -> bool:
    """Whether the operator gives the module's result, bit for bit."""
    weight = getattr(module, "weight", None)
    if type(weight) is not nn.Parameter or not hasattr(module, "variance_epsilon"):
        return False
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or "forward" in vars(module):
        return False
    with torch.no_grad():
        trial = torch.linspace(-3, 2, 2 * len(weight)).sin().view(2, -1)
        return torch.equal(module(trial), _norm(module, trial))
