"""Runs of strop in processes of their own, and the memory of a process."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from strop.training.record import ending

# Freed blocks above a small size go back to the system at once, so the peak is the memory in use.
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "16384", "MALLOC_TRIM_THRESHOLD_": "0",
              "MALLOC_TOP_PAD_": "0"}  # fmt: skip


def output_of(*words: str, **environment: str) -> str:
    """What a Python process printed, with these environment variables besides the usual ones.

    Ends the program where it fails, which has printed why.
    """
    done = subprocess.run(
        [sys.executable, *words], check=False, env={**os.environ, **environment},
        stdout=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode} of: python {shlex.join(words)}")
    return done.stdout


def finished(folder: Path) -> bool:
    """Whether a run has taken all its steps."""
    found = ending.read(folder)
    return found is not None and found.finished


def train(folder: Path, *words: str, processes: int = 1, **environment: str) -> Path:
    """Train a run, or the rest of it; returns its folder.

    The words are kept beside the folder: a run with others, which would be taken for the one that
    is asked for, ends the program.
    """
    kept, asked = folder.with_name(f"{folder.name}.words"), shlex.join(words)
    before = kept.read_text(encoding="utf-8") if kept.exists() else asked
    begun = (folder / "config.toml").exists()
    if begun and before != asked:
        raise SystemExit(f"{folder} is a run of other options: give another folder.\n"
                         f"it has: {before}\nasked:  {asked}")  # fmt: skip
    if finished(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(asked, encoding="utf-8")
    given = ["--resume", str(folder)] if begun else [*words, "--out", str(folder)]
    start = ["-m", "strop", "train", *given]
    if processes > 1:
        count = f"--nproc-per-node={processes}"
        start = ["-m", "torch.distributed.run", "--standalone", count, *start]
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
