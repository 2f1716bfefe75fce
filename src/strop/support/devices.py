"""Numbers on their way to a device, the order in which it adds them up, and kernels for it."""

import functools
import importlib.util
import os
import shutil
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor


def to_device(values: Tensor | np.ndarray, device: torch.device) -> Tensor:
    """The values on a device. What goes from the CPU to a GPU gets there in its turn, from pinned
    memory: a plain copy waits until the GPU has done all that it was given before.
    """
    found = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if found.device.type == "cpu" and device.type == "cuda" and found.numel():
        return found.contiguous().pin_memory().to(device, non_blocking=True)
    return found.to(device)


def launching_on(device: torch.device) -> AbstractContextManager[object]:
    """Inside, streams, graphs and kernels are of this GPU; torch may take another by default."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@functools.cache
def why_no_kernels(device: torch.device) -> str:
    """Why kernels in Triton, torch.compile's too, are not made for a device; empty: they are."""
    if device.type != "cuda":
        return f"it is on {device.type}"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    compilers = (os.environ.get("CC", ""), "gcc", "clang")
    return "" if any(map(shutil.which, filter(None, compilers))) else "there is no C compiler"


def use_deterministic_operators() -> None:
    """From now on torch takes operators in this process that give the same bits each time, where it
    has them; it warns of one that it has not. On a CPU they are the ones that it takes anyway.
    """
    # read when cuBLAS makes its first product
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # nothing here reads what was not written
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
