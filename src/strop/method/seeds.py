"""Random generators that need no state: each is made anew from (seed, step, label, update)."""

import hashlib
from collections.abc import Callable

import torch


def number(seed: int, step: int, label: str, update: int = 0) -> int:
    """A 62-bit number that depends on all four, the same on every machine."""
    text = f"{seed}/{step}/{label}/{update}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 2


def generators(seed: int, step: int) -> Callable[[str, int], torch.Generator]:
    """(label, update) -> a fresh generator on the CPU.

    So a checkpoint needs no generator's state: a resumed run draws what the unbroken one drew.
    """

    def of(label: str, update: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(number(seed, step, label, update))

    return of
