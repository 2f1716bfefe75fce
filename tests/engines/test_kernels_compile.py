"""The Triton kernels compile for current GPUs, as far as a CPU can check.

Interpreting a kernel, as other tests do, does not show that. Without Triton nothing is compiled:
`pip install triton`.
"""

import importlib.util
import subprocess
import sys

import pytest

COMPILES = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from strop.engines.local import newest_attention as attention
from strop.head import kernels

def compiled(kernel, capability, pointers, constants, **options):
    names = kernel.arg_names
    kinds = dict.fromkeys(names, "i32") | dict.fromkeys(constants, "constexpr") | pointers
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=kinds, constexprs=values)
    found = compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert found.metadata.shared < 99 * 1024, (kernel, constants)  # of the smallest of these GPUs

rows = {name: "*fp32" for name in ("logp", "log_sum", "entropy", "on_logp", "on_entropy")}
for capability in (80, 90):
    for entropy in (False, True):
        sizes = {"VOCABULARY": 151_936, "BLOCK": 4096, "ENTROPY": entropy}
        for kernel in (kernels.measure, kernels.gradient):
            kinds = {"logits": "*fp32", "ids": "*i64", "out": "*bf16", **rows}
            own = {name: kind for name, kind in kinds.items() if name in kernel.arg_names}
            compiled(kernel, capability, own, sizes, num_warps=8)
    for kind, width in (("bf16", 2), ("fp32", 4)):
        for size, window in ((16, 0), (64, 70), (128, 0), (256, 0)):
            names = ("query", "key", "value", "keys", "values", "out")
            pointers = dict.fromkeys(names, f"*{kind}") | {"lines": "*i64", "places": "*i64"}
            sizes = {"WINDOW": window, "TOGETHER": 2, "ROWS": 16, "SIZE": size,
                     "TILE": attention.tile_of(size, width)}
            compiled(attention._attend, capability, pointers | {"scale": "fp32"}, sizes,
                     num_warps=attention.WARPS, num_stages=attention.STAGES)
print("compiled")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_compile_for_gpus_of_two_generations():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILES], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout == "compiled\n", done.stderr[-3000:]
