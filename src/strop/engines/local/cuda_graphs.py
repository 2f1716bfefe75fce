"""Decoding passes that a GPU repeats by itself: recorded once as CUDA graphs, then replayed.

A pass for one new token a row is some hundred to two thousand kernels, and launching them one by
one takes many times as long as computing them. A recorded pass is one launch. It reads and writes
the same memory every time, so its numbers of rows and places are rounded up: rows that are too many
stand at place -1 and do nothing that counts.
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

# A pass of the first so many rows, of whose caches it reads so many places: logits [N, V] after
# tokens [N] at places [N].
Pass = Callable[[Tensor, Tensor, int], Tensor]


class Recorded(NamedTuple):
    """A pass, the logits that it writes, and what it reads of others' that has to stay."""

    replay: Callable[[], None]
    logits: Tensor
    kept: Any


class Graphs:
    """The recorded passes of a model. They hold as long as nothing that they read has moved.

    run: the pass. reads: what it reads beside the cache and the weights, to be kept for it. checks:
    a pass that waits for the GPU, which cannot be recorded, is refused before that is tried.
    """

    def __init__(
        self, run: Pass, reads: Callable[[], Any], num_slots: int, device: torch.device,
        checks: bool = False,
    ) -> None:  # fmt: skip
        self.run, self.reads, self.device, self.checks = run, reads, device, checks
        self.recorded: dict[tuple[int, int], Recorded] = {}
        self.token = torch.zeros(num_slots, dtype=torch.long, device=device)
        self.place = torch.full((num_slots,), -1, dtype=torch.long, device=device)
        self.where: object = None  # what the passes read lies
        self.logits: Tensor | None = None  # of passes that are recorded for many numbers of places
        self.stream: Any = None  # the stream that passes are recorded on
        self.pool: Any = None  # memory that they share, since only one runs at a time

    def holds(self, where: object) -> None:
        """Forget all if what they read lies elsewhere than when they were recorded."""
        if where != self.where:
            self.recorded.clear()
            self.where, self.pool, self.logits = where, None, None

    def __call__(self, token_N: Tensor, place_N: Tensor, lines: int, used: int) -> Tensor:
        """Logits [N, V] of a pass over the first N of `lines` slots; the next pass writes there.

        used: places that it reads; 0: it knows how many.
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
        with torch.cuda.stream(self.stream):  # what is made once is not to be recorded
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
            torch.cuda.set_stream(here)  # torch leaves the other one where recording fails
        self.pool = graph.pool()
        return Recorded(graph.replay, logits, self.reads())

    def _pass(self, token_N: Tensor, place_N: Tensor, used: int) -> Tensor:
        """The pass, whose logits all those with `used` write to one place: each of its own would
        hold memory of its own.
        """
        found = self.run(token_N, place_N, used)
        if not used:
            return found
        if self.logits is None:
            self.logits = found.new_empty(len(self.place), found.shape[-1])
        return self.logits[: len(found)].copy_(found)


@contextmanager
def _refusing_waits() -> Iterator[None]:
    """Inside, what waits for the GPU raises RuntimeError."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def rounded(used: int, most: int) -> int:
    """Places that a pass is recorded for, to read `used` of at most `most`."""
    step = max(LEAST_PLACES, (1 << (used.bit_length() - 1)) // SHARE)
    return min(-(-used // step) * step, most)


def copied(values: Tensor) -> Callable[[], np.ndarray]:
    """Begin to copy to the host, behind what the device was given so far and before what it is
    given next. The result waits for it.
    """
    found = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    found.copy_(values, non_blocking=True)
    done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()

    def wait() -> np.ndarray:
        done.synchronize()
        return found.numpy().copy()

    return wait
