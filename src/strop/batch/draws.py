"""Random numbers that follow from a seed of each row, so that no draw depends on the other rows."""

import torch
from torch import Tensor

# Signed forms of the constants of splitmix64; int64 products wrap around.
STEP, FIRST, SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def uniforms(seed_N: Tensor, num: int, skipped: int = 0) -> Tensor:
    """`num` numbers in [0, 1) after the first `skipped` of every seed [N] int64; float64 [N, num].

    They are the numbers of splitmix64 (Steele, Lea and Flood 2014) from that seed.
    """
    place = torch.arange(1, num + 1, device=seed_N.device) + _signed(skipped)
    mixed_NK = seed_N[:, None] + place * STEP
    for bits, factor in ((30, FIRST), (27, SECOND)):
        mixed_NK.bitwise_xor_(_down(mixed_NK, bits)).mul_(factor)
    mixed_NK.bitwise_xor_(_down(mixed_NK, 31))
    return _down(mixed_NK, 11).double().mul_(2.0**-53)


def _down(value: Tensor, bits: int) -> Tensor:
    """A shift to the right that brings in zeros."""
    return (value >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    """The lowest 64 bits of a number, as a signed one."""
    return (number + 2**63) % 2**64 - 2**63
