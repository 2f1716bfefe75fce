"""What torchrun keeps while it starts processes again: which run they had begun, and their talk.

Its store outlives the processes, so `torchrun --max-restarts` finds there the run that its own
processes have begun, and takes no other for it.
"""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path
from typing import Any

import torch

LIMIT = datetime.timedelta(minutes=5)


def _store(limit: datetime.timedelta = LIMIT) -> Any:
    """The store of who has started this process and starts it again; None where nobody does."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return torch.distributed.TCPStore(address, port, is_master=False, timeout=limit)


def attempt(limit: datetime.timedelta) -> Any:
    """The part of it that belongs to the processes that were started together, if there is one.

    In the whole of it torch would find addresses of processes that are gone.
    """
    kept = _store(limit)
    number = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return None if kept is None else torch.distributed.PrefixStore(f"strop/{number}", kept)


def tell_begun(folder: Path) -> None:
    """Let processes that are started in place of these go on with the run in a folder."""
    kept = _store()
    if kept is not None:
        kept.set(_name(), str(folder.resolve()))


def begun() -> Path | None:
    """The run that the processes before these have begun; None where there was none."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return None
    kept = _store()
    if kept is None or not kept.check([_name()]):
        return None
    folder = Path(kept.get(_name()).decode())
    return folder if (folder / "config.toml").is_file() else None


def _name() -> str:
    """Of this command's run: what is started may be several commands, one after another."""
    return "strop/run/" + "\0".join(sys.argv[1:])
