"""Random numbers from the seed of a token, so that draws do not depend on how rows are split."""

import torch
from torch import Tensor

# Signed forms of the constants of splitmix64; int64 products wrap around.
STEP, FIRST, SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def uniforms(seed_T: Tensor, num: int) -> Tensor:
    """`num` numbers in [0, 1) for every seed [T] int64; float64 [T, num]."""
    place = torch.arange(1, num + 1, device=seed_T.device)
    mixed_TN = seed_T[:, None] + place * STEP
    for bits, factor in ((30, FIRST), (27, SECOND)):
        mixed_TN.bitwise_xor_(_down(mixed_TN, bits)).mul_(factor)
    mixed_TN.bitwise_xor_(_down(mixed_TN, 31))
    return _down(mixed_TN, 11).double().mul_(2.0**-53)


def drawn(weight_TV: Tensor, seed_T: Tensor, num: int) -> Tensor:
    """`num` draws [T, num] from every row of weights [T, V], which need not add up to 1."""
    sum_TV = weight_TV.cumsum(-1)
    whole_T1 = sum_TV[:, -1:]
    level_TN = uniforms(seed_T, num).mul_(whole_T1).to(sum_TV.dtype)
    # A level that is rounded up to the whole sum lies above all tokens: the last possible one's is
    # just below.
    level_TN = torch.minimum(level_TN, torch.nextafter(whole_T1, torch.zeros_like(whole_T1)))
    return torch.searchsorted(sum_TV, level_TN, right=True)


def _down(value: Tensor, bits: int) -> Tensor:
    """A shift to the right that brings in zeros."""
    return (value >> bits).bitwise_and_((1 << (64 - bits)) - 1)
