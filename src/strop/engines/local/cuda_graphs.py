"""Records decoding passes once as CUDA graphs, then replays them.

A pass for one new token per row is some hundred to two thousand kernels, and launching them one by
one takes many times as long as computing them. A recorded pass is one launch. It reads and writes
the same memory every time, so its numbers of rows and places are rounded up: surplus rows stand at
place -1, and their results are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

LEAST_ROWS, LEAST_PLACES = 8, 64  # of a recorded pass
SHARE = 8  # places are rounded up by at most this part of them

# A pass over the first rows: (tokens [N], their places [N], number of places to read) -> logits
# [N, V].
Pass = Callable[[Tensor, Tensor, int], Tensor]


class Recorded(NamedTuple):
    """A recorded pass, the logits that it writes, and other owners' tensors that it reads."""

    replay: Callable[[], None]
    logits: Tensor
    kept: Any


class Graphs:
    """The recorded passes of a model. They are valid until a tensor that they read has moved.

    run: the pass. reads: gives the tensors, beside cache and weights, to keep alive for it. checks:
    before recording, refuse a pass that waits for the GPU, which cannot be recorded.
    """

    def __init__(
        self, run: Pass, reads: Callable[[], Any], num_slots: int, device: torch.device,
        checks: bool = False,
    ) -> None:  # fmt: skip
        self.run, self.reads, self.device, self.checks = run, reads, device, checks
        self.recorded: dict[tuple[int, int], Recorded] = {}
        self.token = torch.zeros(num_slots, dtype=torch.long, device=device)
        self.place = torch.full((num_slots,), -1, dtype=torch.long, device=device)
        self.where: object = None  # the addresses of the tensors that the passes read
        self.logits: Tensor | None = None  # shared by passes for different numbers of places
        self.stream: Any = None  # the stream that passes are recorded on
        self.pool: Any = None  # memory that they share, since only one runs at a time

    def holds(self, where: object) -> None:
        """Drop all passes if the tensors that they read have moved since the recording."""
        if where != self.where:
            self.recorded.clear()
            self.where, self.pool, self.logits = where, None, None

    def __call__(self, token_N: Tensor, place_N: Tensor, lines: int, used: int) -> Tensor:
        """Logits [N, V] of a pass over the first N of `lines` slots; the next pass writes there.

        used: places that it reads; 0: the pass determines the number itself.
        """
        number = len(token_N)
        size = min(max(LEAST_ROWS, 1 << (number - 1).bit_length()), lines)
        self.token[:number] = token_N
        self.place[:number] = place_N
        self.place[number:size] = -1
        key = size, used
        if key not in self.recorded:
            self.recorded[key] = self._record(*key)
        found = self.recorded[key]
        found.replay()
        return found.logits[:number]

    def _record(self, size: int, used: int) -> Recorded:
        token, place = self.token[:size], self.place[:size]
        here = torch.cuda.current_stream()
        if self.stream is None:
            self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):  # so that one-time work is not recorded
            self._pass(token, place, used)
            if self.checks:
                with _refusing_waits():
                    self._pass(token, place, used)
        here.wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(
                graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"
            ):
                logits = self._pass(token, place, used)
        finally:
            torch.cuda.set_stream(here)  # torch leaves the other stream set if recording fails
        self.pool = graph.pool()
        return Recorded(graph.replay, logits, self.reads())

    def _pass(self, token_N: Tensor, place_N: Tensor, used: int) -> Tensor:
        """Run the pass; all passes with `used` write their logits to one tensor, because separate
        ones would each need memory.
        """
        found = self.run(token_N, place_N, used)
        if not used:
            return found
        if self.logits is None:
            self.logits = found.new_empty(len(self.place), found.shape[-1])
        return self.logits[: len(found)].copy_(found)


@contextmanager
def _refusing_waits() -> Iterator[None]:
    """Inside, an operation that waits for the GPU raises RuntimeError."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def rounded(used: int, most: int) -> int:
    """The number of places, at most `most`, of the recorded pass that reads `used` places."""
    step = max(LEAST_PLACES, (1 << (used.bit_length() - 1)) // SHARE)
    return min(-(-used // step) * step, most)


def copied(values: Tensor) -> Callable[[], np.ndarray]:
    """Start a copy to the host, after the device's current work and before any later work. The
    returned function waits for it.
    """
    found = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    found.copy_(values, non_blocking=True)
    done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()

    def wait() -> np.ndarray:
        done.synchronize()
        return found.numpy().copy()

    return wait
