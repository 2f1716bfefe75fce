"""Kernels of the head in Triton, which comes with torch for GPUs: see `strop.head.fused`."""

# Triton reads the source of the functions below: it ignores types
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def measure(
    logits, ids, logp, log_sum, entropy,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, ENTROPY: tl.constexpr,
):  # fmt: skip
    """One row: the largest logit m so far, sum exp(z - m) and sum exp(z - m) (z - m)."""
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * VOCABULARY
    most, total, weighted = -1e30, 0.0, 0.0
    for first in range(0, VOCABULARY, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < VOCABULARY
        z = tl.load(start + column, mask=inside, other=-1e30)
        larger = tl.maximum(most, tl.max(z, 0))
        shrunk = tl.exp(most - larger)
        exp = tl.where(inside, tl.exp(z - larger), 0.0)
        if ENTROPY:
            weighted = shrunk * (weighted + (most - larger) * total)
            weighted += tl.sum(exp * (z - larger), 0)
        total = total * shrunk + tl.sum(exp, 0)
        most = larger
    log_total = tl.log(total)
    picked = tl.load(start + tl.load(ids + row))
    tl.store(logp + row, picked - most - log_total)
    tl.store(log_sum + row, most + log_total)
    if ENTROPY:
        tl.store(entropy + row, log_total - weighted / total)


@triton.jit
def gradient(
    logits, ids, log_sum, entropy, on_logp, on_entropy, out,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, ENTROPY: tl.constexpr,
):  # fmt: skip
    """dL/dz of a block of a row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < VOCABULARY
    logq = tl.load(logits + row * VOCABULARY + column, mask=inside) - tl.load(log_sum + row)
    own = tl.load(on_logp + row)
    factor = own
    if ENTROPY:
        factor = own + tl.load(on_entropy + row) * (logq + tl.load(entropy + row))
    found = tl.where(column == tl.load(ids + row), own, 0.0) - tl.exp(logq) * factor
    tl.store(out + row * VOCABULARY + column, found.to(out.dtype.element_ty), mask=inside)
