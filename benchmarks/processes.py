"""Runs of strop in processes of their own, and the memory of a process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from strop.training.record.run_folder import REPORT

# Freed blocks above a small size go back to the system at once, so the peak is the memory in use.
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "16384", "MALLOC_TRIM_THRESHOLD_": "0",
              "MALLOC_TOP_PAD_": "0"}  # fmt: skip


def output_of(*words: str, **environment: str) -> str:
    """What a Python process printed, with these environment variables besides the usual ones."""
    return subprocess.run(
        [sys.executable, *words], check=True, env={**os.environ, **environment},
        stdout=subprocess.PIPE, encoding="utf-8",
    ).stdout  # fmt: skip


def train(folder: Path, *words: str, processes: int = 1, **environment: str) -> Path:
    """Train a run unless it exists; returns its folder."""
    start = ["-m", "strop", "train", *words, "--out", str(folder)]
    if processes > 1:
        count = f"--nproc-per-node={processes}"
        start = ["-m", "torch.distributed.run", "--standalone", count, *start]
    if not (folder / REPORT).exists():
        output_of(*start, **environment)
    return folder


def status(field: str) -> int:
    """Bytes of a line of /proc/self/status (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def peak_mib() -> float:
    """Peak resident memory of this process so far, in MiB."""
    return status("VmHWM") / 2**20


def extra_bytes(run: Callable[[], object]) -> int:
    """Peak resident memory while something runs, minus what the process has before it."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    run()
    return status("VmHWM") - before
