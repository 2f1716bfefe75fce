"""Numbers on their way to a device."""

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
