"""The command line in this process, and in processes that can be killed."""

import multiprocessing
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from strop.cli.main import main

PRELOADED = [
    "strop.training.loop", "strop.cli.main", "strop.cli.progress", "strop.report.page",
    "strop.evaluation.validate", "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen3.modeling_qwen3",
]  # fmt: skip


class Said(NamedTuple):
    """Exit code and what was printed."""

    code: int
    out: str
    err: str


class Strop:
    """Calls `strop` with words as a user types them, in this process."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self.patch, self.capture = patch, capture

    def __call__(self, *words: str | Path) -> Said:
        self.capture.readouterr()
        self.patch.setattr(sys, "argv", ["strop", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return Said(0 if code is None else int(code), *self.capture.readouterr())


def launch(words: Sequence[str | Path], output: Path, most_bytes: int = 0) -> Any:
    """A process of its own that runs the command; what it prints goes to the file `output`.

    It is forked from a server that has imported torch once, so it starts in a moment. No file may
    grow beyond `most_bytes` (0: no limit); writing more fails as on a full disk.
    """
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_command, args=([*map(str, words)], str(output), most_bytes))
    process.start()
    return process


def _command(words: list[str], output: str, most_bytes: int) -> None:
    os.setsid()  # a group of its own, as a shell gives it
    if most_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["strop", *words]
    main()
