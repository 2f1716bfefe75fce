"""Numbers on their way to a device."""

import numpy as np
import torch
from torch import Tensor


def sent(values: np.ndarray, device: torch.device) -> Tensor:
    """A copy on the device. A GPU gets it in its turn, and nobody waits for that: a plain copy
    waits until the GPU has done all that it was given before.
    """
    found = torch.from_numpy(values)
    if device.type != "cuda":
        return found.to(device)
    return found.pin_memory().to(device, non_blocking=True)
