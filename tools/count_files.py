"""Counts the files of strop that one padded loss and one training step run through.

    python tools/count_files.py [--list]

A file counts where one of its functions is called; what imports run does not count. The loss is
that of grpo on 4 answers of 6 tokens: the first call, which composes the recipe, and the next. The
step is the second of grpo on the shipped model, without its set-up. --list names the files.
"""

import argparse
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import torch

from strop import functional
from strop.api.options import combined
from strop.support.about import SOURCE
from strop.training import loop
from strop.training.step import train_step

OPTIONS = [
    ("training.steps", 2), ("training.rollouts_every", 0), ("evaluation.every", 0),
    ("sampling.num_prompts", 4), ("sampling.num_rollouts", 4),
]  # fmt: skip
SILENT = SimpleNamespace(begin=lambda *_: None, step=lambda *_: None, note=lambda *_: None)


def files_of(call: Callable[[], Any]) -> list[str]:
    """The files below src/strop whose functions the call runs, in threads that it starts too."""
    found, imports = set[str](), Counter[int]()  # by thread: how deep inside imports

    def look(frame: FrameType, event: str, _: Any) -> None:
        code, thread = frame.f_code, threading.get_ident()
        if code.co_name == "<module>":
            imports[thread] += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not imports[thread] and code.co_filename.startswith(f"{SOURCE}/"):
            found.add(code.co_filename.removeprefix(f"{SOURCE}/"))

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(found)


def padded_loss() -> None:
    logp = torch.linspace(-2, -1, 24).reshape(4, 6).requires_grad_()
    given = {"logp_old": logp.detach() - 0.1, "advantages": torch.tensor([1.0, -1.0, 1.0, -1.0])}
    functional.policy_loss("grpo", logp=logp, mask=torch.ones(4, 6), **given)


@contextmanager
def second_step(folder: Path) -> Iterator[Callable[[], Any]]:
    """Prepares the second step of a run of two, and yields the call that takes it."""
    run = loop.start(combined("grpo", OPTIONS, {}, None), folder)
    try:
        next(loop.steps(run, SILENT, lambda *_: {}))
        run.world.services.begin_step(2)
        yield lambda: train_step(run.world, run.algorithm, run.state, 2)
    finally:
        run.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name the files")
    names = parser.parse_args().list
    counted = {
        "policy_loss, first call": files_of(padded_loss),
        "policy_loss": files_of(padded_loss),
    }
    with tempfile.TemporaryDirectory() as folder, second_step(Path(folder) / "run") as step:
        counted["train_step"] = files_of(step)
    for name, files in counted.items():
        print(f"{name}: {len(files)} files")
        for file in files if names else ():
            print(f"    {file}")


if __name__ == "__main__":
    main()
