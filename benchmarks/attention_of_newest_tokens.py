"""Attention of one new token per row: with keys shared by heads, and with keys copied for each.

    python benchmarks/attention_of_newest_tokens.py [--rows 32 --places 264 --size 128 --repeats 30]

It measures processor time of a layer on one thread, as medians of calls that take turns. "copied"
repeats keys and values for the heads that share them, as transformers does; "torch" leaves that to
torch (enable_gqa); "engine" is `attend_newest`. All give the same result within rounding.
"""

import argparse

import torch
from machine import medians, speed
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from strop.engines.local.cache import attend_newest


def measure(dtype: torch.dtype, heads: int, of_keys: int, options: argparse.Namespace) -> None:
    rows, places, size = options.rows, options.places, options.size
    query = torch.randn(rows, heads, 1, size).to(dtype)
    key, value = (torch.randn(rows, of_keys, places, size).to(dtype) for _ in range(2))
    mask = torch.ones(rows, 1, 1, places, dtype=torch.bool)

    shared = heads // of_keys

    def copied() -> Tensor:
        keys, values = (each.repeat_interleave(shared, 1) for each in (key, value))
        return scaled_dot_product_attention(query, keys, values, attn_mask=mask).transpose(1, 2)

    def by_torch() -> Tensor:
        return scaled_dot_product_attention(
            query, key, value, attn_mask=mask, enable_gqa=shared > 1
        ).transpose(1, 2)

    ways = {"torch": by_torch, "engine": lambda: attend_newest(query, key, value, mask, None)}
    if shared > 1:
        ways = {"copied": copied, **ways}
    for way in ways.values():
        torch.testing.assert_close(way(), by_torch(), atol=2e-2, rtol=2e-2)
    took = medians(ways, options.repeats)
    print(
        f"{str(dtype).removeprefix('torch.')}, {heads} heads, {of_keys} of keys: "
        + ", ".join(f"{name} {1e3 * each:.1f} ms" for name, each in took.items())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("rows", 32), ("places", 264), ("size", 128), ("repeats", 30)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(speed())
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            for of_keys in (8, 16):
                measure(dtype, 16, of_keys, options)


if __name__ == "__main__":
    main()
