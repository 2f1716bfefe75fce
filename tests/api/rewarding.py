"""The reward of the runs from Python. The process of the rewards imports this file, so it is light:
beside what makes runs, every one of those processes would import torch.
"""

from typing import Any


def even(completions: list[str], **columns: Any) -> list[float]:
    """1 where an even number of digits was written, as `even` of the lab's file."""
    return [float(sum(c.isdigit() for c in text) % 2 == 0) for text in completions]
