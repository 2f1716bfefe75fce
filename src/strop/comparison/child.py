"""A run of a comparison: `strop ARGUMENTS...` in a process that has already imported libraries.

It saves and ends when the process that started it is killed.
"""

import multiprocessing
import os
import runpy
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

# Modules that a run takes seconds to import; a fork server imports them once, and every run is a
# fork of it. None of them may start a thread or touch a GPU, which a fork could not use.
PRELOADED = (
    "strop.cli.main",
    "strop.cli.evaluate",
    "strop.api.session",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen3.modeling_qwen3",
    "pandas",  # by pyarrow, with its first table
    "strop.recipes.grpo",
    "strop.engines.local.settings",
    "strop.engines.vllm.server_engine",  # by the schema of the settings
    "strop.diagnosis.watch",
    "pyarrow.dataset",
)
SERVER = "strop.comparison.preloaded"


def run_strop(arguments: Sequence[str], out: Path, error: Path) -> None:
    """Run the command and watch the process that started it; its output goes to files."""
    os.setsid()  # Ctrl-C is for the comparison
    for number, path in ((1, out), (2, error)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    threading.Thread(target=_watch, daemon=True).start()
    sys.argv = ["strop", *arguments]
    runpy.run_module("strop", run_name="__main__", alter_sys=True)  # as `python -m strop`


def _watch() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
