"""The head on a GPU: direct bfloat16 products, and logits that are read once in each direction.

If hidden states and weight are bfloat16, every product of two numbers is exact in float32, in which
a GPU sums them and writes the logits: they equal those of float32 copies, at ten times the speed.
Only dL/dz is rounded to bfloat16 before the gradients are computed; those of the weight are summed
in float32.

    log p = z_id - log sum_j exp z_j        dL/dz_j = g [j = id] - p_j (g + e (log p_j + H))

g and e are the adjoints of log p and of the entropy H. If no other column is requested, one kernel
reads the logits to measure and one to push, in place of some ten passes over them.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from strop.support.devices import launching_on

BLOCK, WARPS = 4096, 8  # logits that a program of the kernels holds at once, and its warps
ADDS_WIDE = hasattr(torch.ops.aten.addmm, "dtype_out")  # torch 2.8 and newer


def add_product(out_NO: Tensor, x_NI: Tensor, y_IO: Tensor, factor: float, keep: bool) -> None:
    """out += factor x y, in place, for bfloat16 x and y; without `keep`: out = factor x y."""
    if out_NO.dtype == x_NI.dtype:
        out_NO.addmm_(x_NI, y_IO, beta=int(keep), alpha=factor)
        return
    torch.ops.aten.addmm.dtype_out(
        out_NO, x_NI, y_IO, out_NO.dtype, beta=int(keep), alpha=factor, out=out_NO
    )


class Measured(NamedTuple):
    """The logits of a chunk, and the values of each row that the backward pass needs."""

    logits_CV: Tensor
    id_C: Tensor
    log_sum_C: Tensor
    entropy_C: Tensor  # meaningless unless it was requested


def measure(
    logits_CV: Tensor, id_C: Tensor, names: tuple[str, ...]
) -> tuple[Measured, dict[str, Tensor]]:
    """The columns of a chunk; its logits are not changed."""
    from strop.head import kernels

    num, vocabulary = logits_CV.shape
    logp_C, log_sum_C, entropy_C = logits_CV.new_empty(3, num)
    with launching_on(logits_CV.device):
        kernels.measure[(num,)](
            logits_CV, id_C, logp_C, log_sum_C, entropy_C, VOCABULARY=vocabulary, BLOCK=BLOCK,
            ENTROPY="entropy_T" in names, num_warps=WARPS,
        )  # fmt: skip
    found = {"logp_T": logp_C, "entropy_T": entropy_C}
    return Measured(logits_CV, id_C, log_sum_C, entropy_C), {name: found[name] for name in names}


def grad_logits(measured: Measured, adjoints: Mapping[str, Tensor], out_CV: Tensor) -> Tensor:
    """dL/dz of a chunk, written to `out_CV`, which may be its logits."""
    from strop.head import kernels

    num, vocabulary = measured.logits_CV.shape
    zero_C = torch.zeros_like(measured.log_sum_C)
    given = (adjoints.get(name, zero_C).contiguous() for name in ("logp_T", "entropy_T"))
    with launching_on(out_CV.device):
        kernels.gradient[(num, -(-vocabulary // BLOCK))](
            *measured, *given, out_CV, VOCABULARY=vocabulary, BLOCK=BLOCK,
            ENTROPY="entropy_T" in adjoints, num_warps=WARPS,
        )  # fmt: skip
    return out_CV
