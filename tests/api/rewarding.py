"""The reward of the runs from Python. The reward process imports this file, so it is light: in the
file that makes runs, each of those processes would import torch.
"""

from typing import Any


def even(completions: list[str], **columns: Any) -> list[float]:
    """1 where an even number of digits was written, as `even` of the lab's file."""
    return [float(sum(c.isdigit() for c in text) % 2 == 0) for text in completions]
