"""Linear layers that multiply with oneDNN where that is faster than what torch takes by itself."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

LEAST = 1 << 21  # multiplications from which on oneDNN's dearer call pays
CPUINFO = Path("/proc/cpuinfo")


@functools.cache
def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies float32 matrices faster on this machine's processor than MKL.

    On AMD's processors with AVX-512 it takes half the time: there MKL, which torch calls, uses
    AVX2. That is decided by what the processor is, so that a machine always rounds alike.
    """
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not CPUINFO.is_file():
        return False
    amd = "AuthenticAMD" in CPUINFO.read_text(encoding="utf-8")
    return amd and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def use_faster_products(model: nn.Module) -> None:
    """Let the linear layers of a model multiply with oneDNN, where that is faster."""
    if onednn_is_faster():
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = OneDnnLinear


class OneDnnLinear(nn.Linear):
    """nn.Linear but for the rounding; what oneDNN would not do faster, torch does as ever."""

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight
        fits = input.dtype == weight.dtype == torch.float32 and input.device.type == "cpu"
        if not fits or input.numel() * len(weight) < LEAST or _others_look_on():
            return super().forward(input)
        if torch.is_grad_enabled():
            return _Product.apply(input, weight, self.bias)
        return _in_rounded_number(input, weight, self.bias)


def product(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias, without gradients."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")
    return found


def _in_rounded_number(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product of some more lines than there are.

    oneDNN makes a program for every number of lines that it meets, and rows that are generated end
    one after the other.
    """
    number = input.numel() // input.shape[-1]
    if not (more := -number % 16):
        return product(input, weight, bias)
    lines = nn.functional.pad(input.reshape(number, -1), (0, 0, 0, more))
    return product(lines, weight, bias)[:number].view(*input.shape[:-1], len(weight))


def _others_look_on() -> bool:
    """Inside torch.func or autocast, which know nothing of oneDNN."""
    return torch._C._are_functorch_transforms_active() or torch.is_autocast_enabled("cpu")


class _Product(torch.autograd.Function):
    """The product with its gradients, which are products too, and so have gradients."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        return product(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        input, weight = ctx.saved_tensors
        to_input, to_weight, to_bias = ctx.needs_input_grad
        lines = grad.flatten(0, -2)
        return (
            _Product.apply(grad, weight.t(), None) if to_input else None,
            _Product.apply(lines.t(), input.flatten(0, -2).t(), None) if to_weight else None,
            lines.sum(0) if to_bias else None,
        )
