"""Copies to devices, deterministic operators, and whether kernels can be compiled."""

import functools
import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_device(values: Tensor | np.ndarray, device: torch.device) -> Tensor:
    """Copy the values to a device. Copies from the CPU to a GPU are queued, from pinned memory: a
    plain copy would wait until the GPU has finished all earlier work.
    """
    found = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if found.device.type == "cpu" and device.type == "cuda" and found.numel():
        return found.contiguous().pin_memory().to(device, non_blocking=True)
    return found.to(device)


def launching_on(device: torch.device) -> AbstractContextManager[object]:
    """Make streams, graphs and kernels in the context use this GPU, not torch's default one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@functools.cache
def why_no_kernels(device: torch.device) -> str:
    """Why Triton kernels, also torch.compile's, cannot be built for a device; empty: they can."""
    if device.type != "cuda":
        return f"it is on {device.type}"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    compilers = (os.environ.get("CC", ""), "gcc", "clang")
    return "" if any(map(shutil.which, filter(None, compilers))) else "there is no C compiler"


def use_deterministic_operators() -> None:
    """Make torch use deterministic operators in this process, where it has them; it warns of an
    operator without one. On a CPU these are the operators that it uses anyway.
    """
    # cuBLAS reads this at its first product
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # nothing here reads uninitialized memory
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def torch_set(threads: int, deterministic: bool) -> Iterator[None]:
    """Inside, torch uses this number of CPU threads (0: as many as before, until something sets
    others) and, where that is wanted, deterministic operators. Afterwards it is as before.
    """
    memory: Any = torch.utils.deterministic
    before, fills = torch.get_num_threads(), memory.fill_uninitialized_memory
    enabled = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    if threads:
        torch.set_num_threads(threads)
    if deterministic:
        use_deterministic_operators()
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if deterministic:
            torch.use_deterministic_algorithms(enabled, warn_only=warns)
            memory.fill_uninitialized_memory = fills
