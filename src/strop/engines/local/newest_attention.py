"""Attention of the newest token of each row on a GPU, over the used part of the row's cache.

    o_h = sum_s softmax_s(scale q_h . k_s) v_s        s: the places of the row up to its newest

One Triton kernel writes the new key and value into the cache and attends. It reads every row up to
its own length, so that no mask is built and a row costs as much as its length. torch's kernels for
such rows (`varlen_attn`) pad the few queries that share a key to 64 or 128.
"""

# Triton reads the source of the function below: it ignores types
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

LEAST_ROWS = 16  # least rows of a product on tensor cores
TILE, TILE_BYTES = 64, 2**14  # most places read at once, and most bytes of their keys
WARPS, STAGES = 2, 3  # warps of a program, and stages of its prefetch


@triton.jit
def _attend(
    query, key, value, keys, values, lines, places, out,
    query_row, key_row, value_row, of_line, of_head, scale,
    WINDOW: tl.constexpr, TOGETHER: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """One program per row and key head."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    place = tl.load(places + row)
    if place < 0:  # no row runs in this slot
        return
    one, each = tl.arange(0, ROWS)[:, None], tl.arange(0, SIZE)
    mine = one < TOGETHER
    at = (head * TOGETHER + one) * SIZE + each[None, :]
    q = tl.load(query + row * query_row + at, mask=mine, other=0.0)
    new_key = tl.load(key + row * key_row + head * SIZE + each)
    new_value = tl.load(value + row * value_row + head * SIZE + each)
    store = tl.load(lines + row) * of_line + head * of_head
    tl.store(keys + store + place * SIZE + each, new_key)
    tl.store(values + store + place * SIZE + each, new_value)
    # the newest place comes first: it is not read back
    log2e: tl.constexpr = 1.4426950408889634
    most = tl.sum(q.to(tl.float32) * new_key.to(tl.float32)[None, :], 1) * scale * log2e
    total = tl.full([ROWS], 1.0, tl.float32)
    found = tl.zeros([ROWS, SIZE], tl.float32) + new_value.to(tl.float32)[None, :]
    begin = tl.zeros([], tl.int64)
    if WINDOW > 0:
        begin = tl.maximum(place - WINDOW + 1, 0) // TILE * TILE
    for start in range(begin, place, TILE):
        s = start + tl.arange(0, TILE)
        seen = s < place
        if WINDOW > 0:
            seen = seen & (s > place - WINDOW)
        address = store + s[:, None] * SIZE + each[None, :]
        k = tl.load(keys + address, mask=seen[:, None], other=0.0)
        v = tl.load(values + address, mask=seen[:, None], other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * log2e)
        score = tl.where(seen[None, :], score, float("-inf"))
        now = tl.maximum(most, tl.max(score, 1))
        weight = tl.exp2(score - now[:, None])
        kept = tl.exp2(most - now)
        total = total * kept + tl.sum(weight, 1)
        found = found * kept[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        most = now
    tl.store(out + row * (tl.num_programs(1) * TOGETHER * SIZE) + at, found / total[:, None], mine)


def tile_of(size: int, num_bytes: int) -> int:
    """Places that are read at once, for heads of `size` numbers of `num_bytes` bytes each."""
    return max(16, min(TILE, TILE_BYTES // (size * num_bytes)))


def attend(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, lines: Tensor,
    places: Tensor, scale: float, window: int | None = None,
) -> Tensor:  # fmt: skip
    """Attention [N, heads * size] of queries [N, heads, size]; writes the new tokens to the caches.

    key, value: [N, key heads, size] of the new tokens. keys, values: the cache [lines, key heads,
    places, size], written in place. lines, places: [N] int64, where each new token goes; it sees
    the places before. A row at place -1 is left out: its attention is not computed. window: most
    places that a token sees, its own included; None: all.
    """
    number, heads, size = query.shape
    shared = key.shape[1]
    together = heads // shared
    out = query.new_empty(number, heads * size)
    _attend[(number, shared)](
        query, key, value, keys, values, lines, places, out,
        query.stride(0), key.stride(0), value.stride(0), keys.stride(0), keys.stride(1), scale,
        WINDOW=window or 0, TOGETHER=together, SIZE=size,
        TILE=tile_of(size, keys.element_size()),
        ROWS=max(LEAST_ROWS, triton.next_power_of_2(together)),
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out
