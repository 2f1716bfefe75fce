"""The store that torchrun keeps while it restarts processes; it names the run they had started.
On Ray the command keeps the store in place of torchrun.

The store outlives the processes, so with `torchrun --max-restarts` the restarted processes find the
run that their predecessors started, and no other.
"""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path
from typing import Any

import torch

LIMIT = datetime.timedelta(minutes=5)
BRIEF = datetime.timedelta(seconds=5)  # for a process that was asked to end


def _store(limit: datetime.timedelta = LIMIT) -> Any:
    """Returns the store of the launcher that restarts this process; None without a launcher."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    return _client(limit)


def _client(limit: datetime.timedelta) -> Any:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return torch.distributed.TCPStore(address, port, is_master=False, timeout=limit)


def attempt(limit: datetime.timedelta) -> Any:
    """Returns the part of the store for the processes of this launch, if there is a store.

    In the whole store torch would find addresses of processes from earlier launches.
    """
    kept = _store(limit)
    return None if kept is None else part(kept, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def part(store: Any, number: str) -> Any:
    """Returns the part of the store for the processes of one launch."""
    return torch.distributed.PrefixStore(f"strop/{number}", store)


def new_store() -> Any:
    """Create a store in this process for the processes it starts, until it is released."""
    return torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def started_by(address: str, port: int) -> dict[str, str]:
    """Returns the environment variables of processes that are started with such a store."""
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def is_first(what: str) -> bool:
    """Whether this process is the first of its launch to call this.

    Also True where the store cannot be reached: a duplicate report is better than none.
    """
    try:
        store = attempt(BRIEF)
        return store is None or int(store.add(f"strop/{what}", 1)) == 1
    except torch.distributed.DistError:
        return True


def connected() -> Any:
    """Open a new connection to the store of the processes of this launch."""
    return attempt(LIMIT) or _client(LIMIT)


def mark_started(folder: Path) -> None:
    """Record the run's folder, so that restarted processes resume it."""
    kept = _store()
    if kept is not None:
        kept.set(_name(), str(folder.resolve()))


def previous_run() -> Path | None:
    """Returns the run that the previous processes started; None if there is none."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return None
    kept = _store()
    if kept is None or not kept.check([_name()]):
        return None
    folder = Path(kept.get(_name()).decode())
    return folder if (folder / "config.toml").is_file() else None


def _name() -> str:
    """Returns the key of this command's run; a script may run several commands in sequence."""
    return "strop/run/" + "\0".join(sys.argv[1:])
