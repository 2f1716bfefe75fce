"""The speed of this machine, without which times cannot be compared, and such times."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from strop.support import linear

SIDE, TIMES = 1024, 8


def gflops(dtype: torch.dtype = torch.float32, onednn: bool = False) -> float:
    """Billions of operations per processor second in a matrix product, the best of five.

    On one thread. onednn: with oneDNN's product, as in strop's linear layers; else with torch's.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    one, other, best = torch.randn(SIDE, SIDE).to(dtype), torch.randn(SIDE, SIDE).to(dtype), 0.0
    multiply = linear.linear if onednn else torch.nn.functional.linear
    with torch.no_grad():
        for _ in range(5):
            began = time.process_time()
            for _ in range(TIMES):
                multiply(one, other)
            best = max(best, TIMES * 2 * SIDE**3 / (time.process_time() - began) / 1e9)
    torch.set_num_threads(threads)
    return best


def taking_turns(ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Processor seconds of each way's runs; those of a first round do not count.

    The ways take turns, so that a busy machine slows all of them.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(1 + rounds):
        for name, run in ways.items():
            began = time.process_time()
            run()
            if number:
                found[name].append(time.process_time() - began)
    return found


def medians(ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The median processor seconds of each way, which take turns."""
    return {name: statistics.median(spent) for name, spent in taking_turns(ways, rounds).items()}


def speed() -> str:
    """A line with both ways, and bfloat16."""
    return (
        f"GFLOP/s on one thread: torch {gflops():.0f}, oneDNN {gflops(onednn=True):.0f}, "
        f"bfloat16 {gflops(torch.bfloat16):.0f}"
    )


if __name__ == "__main__":
    print(speed())
