"""Records the versions and the machine of a run, at its start and at each resume.

Nothing in it shows who ran it or where: no names, no paths, no variables of the environment.
"""

import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from strop.catalogue import catalogue
from strop.support.about import VERSION
from strop.support.errors import UserError
from strop.support.files import json_of
from strop.support.processes import num_cores, usable_memory
from strop.support.writing import write_whole, writing

NAME = "environment.json"
# What computes a run's numbers, as the file and as messages name it.
CODE = {
    "strop": "strop", "torch": "torch", "transformers": "transformers",
    "packages": "packages with parts or recipes",
}  # fmt: skip


def now(device: torch.device, step: int, processes: int) -> dict[str, Any]:
    """This process and its machine.

    step: the steps that the run has done already. processes: how many train together.
    """
    memory, theirs = usable_memory(), catalogue.packages()
    return {
        "begun": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "after_step": step,
        "strop": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "device": device_name(device),
        "cores": num_cores(),
        "threads": torch.get_num_threads(),
        "processes": processes,
        "memory_gib": None if memory is None else round(memory / 2**30, 1),
        **({"packages": ", ".join(theirs)} if theirs else {}),
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Notes for a run that continues with other versions than it had at its last start."""
    return [
        f"{name}: the run had {before[key]} when it last began, and continues with "
        f"{now.get(key, 'none')}, so its numbers may differ from those of a run without this change"
        for key, name in CODE.items() if key in before and before[key] != now.get(key)
    ]  # fmt: skip


def read_environment(folder: Path) -> list[dict[str, Any]]:
    """The starts of a run, oldest first; empty for a run from before they were recorded.

    Raises UserError for a file that cannot be read.
    """
    path = folder / NAME
    if not path.exists():
        return []
    try:
        found = json_of(path.read_bytes())
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise ValueError("it is no list of objects")
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read: restore it, or remove it to continue without it"
        ) from error
    return found


def write_environment(folder: Path, starts: list[dict[str, Any]]) -> None:
    """Write all starts of a run. Raises RunStopped on a full disk."""
    with writing(folder, NAME):
        write_whole(folder / NAME, json.dumps(starts, indent=1) + "\n")


def device_name(device: torch.device) -> str:
    """Returns the name of the accelerator or the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _processor() if device.type == "cpu" else device.type


def _processor() -> str:
    """Returns the processor's name on Linux, elsewhere its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
