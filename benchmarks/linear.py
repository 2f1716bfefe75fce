"""Linear layers in float32 on this processor: torch's product compared with oneDNN's.

    OMP_NUM_THREADS=1 python benchmarks/linear.py [--repeats 7]

All products of one forward pass of the shipped `tiny` and of a Qwen3 of 40 million weights
(benchmarks/engine.py, `large`), for several numbers of rows: forward alone, and with the backward
pass. Ways take turns. The output has medians of elapsed time in milliseconds, and oneDNN's speedup.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from strop.support import linear

MODELS = {  # inputs and outputs of the layers
    "tiny": [*[(96, 96)] * 12, *[(96, 256)] * 6, *[(256, 96)] * 3, (96, 32)],
    "large": [
        *[(512, 512)] * 20, *[(512, 256)] * 20, *[(512, 1536)] * 20, *[(1536, 512)] * 10,
        (512, 16384),
    ],
}  # fmt: skip
ROWS = {"tiny": (32, 512, 8192), "large": (1, 16, 32, 512, 2048)}


def forward(function: Callable[..., Tensor], weights: list[Tensor], rows: int) -> float:
    """Milliseconds without gradients."""
    inputs = {w.shape[1]: torch.randn(rows, w.shape[1]) for w in weights}
    started = time.perf_counter()
    with torch.no_grad():
        for weight in weights:
            function(inputs[weight.shape[1]], weight)
    return 1e3 * (time.perf_counter() - started)


def both(function: Callable[..., Tensor], weights: list[Tensor], rows: int) -> float:
    """Milliseconds with the gradients of inputs and weights."""
    spent = 0.0
    for weight in weights:
        x = torch.randn(rows, weight.shape[1], requires_grad=True)
        gradient = torch.randn(rows, len(weight))
        started = time.perf_counter()
        torch.autograd.grad(function(x, weight), (x, weight), gradient)
        spent += time.perf_counter() - started
    return 1e3 * spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")
    print(f"{'model':8s}{'rows':>6s}  {'':20s}{'torch':>9s}{'oneDNN':>9s}{'ratio':>7s}")
    for name, shapes in MODELS.items():
        weights = [torch.randn(o, i, requires_grad=True) for i, o in shapes]
        for rows in ROWS[name]:
            for what, run in (("forward", forward), ("forward and backward", both)):
                found: list[list[float]] = [[], []]
                for _ in range(options.repeats + 1):
                    for times, way in zip(
                        found, (nn.functional.linear, linear.linear), strict=True
                    ):
                        times.append(run(way, weights, rows))
                theirs, ours = (statistics.median(times[1:]) for times in found)
                print(f"{name:8s}{rows:6d}  {what:20s}{theirs:9.2f}{ours:9.2f}{theirs / ours:7.2f}")


if __name__ == "__main__":
    main()
