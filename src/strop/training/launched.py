"""What torchrun keeps while it starts processes again: which run they had begun, and their talk.
On Ray the command keeps it in torchrun's place.

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
    return _client(limit)


def _client(limit: datetime.timedelta) -> Any:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return torch.distributed.TCPStore(address, port, is_master=False, timeout=limit)


def attempt(limit: datetime.timedelta) -> Any:
    """The part of it that belongs to the processes that were started together, if there is one.

    In the whole of it torch would find addresses of processes that are gone.
    """
    kept = _store(limit)
    return None if kept is None else part(kept, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def part(store: Any, number: str) -> Any:
    """What belongs, in the store, to the processes of a start."""
    return torch.distributed.PrefixStore(f"strop/{number}", store)


def new_store() -> Any:
    """A store to keep in this process for others that it starts, until nothing holds it."""
    return torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def started_by(address: str, port: int) -> dict[str, str]:
    """What processes find in their environment that are started with such a store."""
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def connected() -> Any:
    """A connection of its own to the store of the processes that were started together."""
    return attempt(LIMIT) or _client(LIMIT)


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
