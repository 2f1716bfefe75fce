"""Measures the seconds of each stage of a step and its tokens per second."""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from strop.batch.batch import Batch


class Clock:
    """Adds up seconds by stage, `with clock("reward"): ...`; `now` is the wall clock.

    tell: called with each stage as it starts.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        tell: Callable[[str], None] = lambda stage: None,
    ) -> None:
        self.now, self.tell, self.begun = now, tell, now()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self.tell(stage)
        start = self.now()
        try:
            yield
        finally:
            spent = self.now() - start
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent

    def metrics(self, batch: Batch) -> dict[str, float]:
        """timing_s/*, perf/* and step_time (s)."""
        whole = self.now() - self.begun
        tokens = float(batch["mask_T"].sum())
        return {
            **{f"timing_s/{stage}": seconds for stage, seconds in self.seconds.items()},
            "step_time": whole,
            "perf/tokens_per_s": tokens / whole,
            "perf/rollouts_per_s": batch.size("B") / whole,
            "perf/peak_mem_gb": peak_memory_gb(),
        }


def peak_memory_gb() -> float:
    """Returns the peak memory in GiB, of the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
