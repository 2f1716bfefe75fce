"""Describes this machine for `strop doctor`: versions, devices, threads, optional packages."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from strop.support.about import VERSION
from strop.support.processes import num_cores, usable_memory
from strop.tracking.base import TRACKERS

CLIENTS = {"mlflow": "mlflow-skinny"}  # trackers whose package has another name
# Package -> what strop uses it for, with its extra.
PACKAGES = {
    "peft": "low-rank adapters: pip install 'strop[lora]'",
    "gguf": "GGUF models: pip install 'strop[gguf]'",
    "datasets": "data sets of the hub and their folders: pip install 'strop[data]'",
    "reasoning-gym": "tasks reasoning_gym:NAME: pip install 'strop[reasoning-gym]'",
    "open-spiel": "games: pip install 'strop[games]'",
    "gymnasium": "environments gym:NAME: pip install 'strop[gym]'",
    "textarena": "games textarena:NAME: pip install 'strop[textarena]'",
    "mcp": "tools of MCP servers: pip install 'strop[mcp]'",
    "liger-kernel": "faster layers in training on a GPU: pip install 'strop[liger]'",
    "bm25s": "search in a corpus as a tool: pip install 'strop[search]'",
    "renderers": "calls and turns in the forms of model families: pip install 'strop[renderers]'",
    "pyzmq": "environments verifiers:URL: pip install 'strop[verifiers]'",
    "websockets": "environments openenv:URL: pip install 'strop[openenv]'",
    "vllm": "sampling by vLLM: pip install 'strop[vllm]', or engine.python",
    "tinker": "a model on Tinker's API: pip install 'strop[tinker]'",
    "ray": "engines and trainers on a cluster: pip install 'strop[ray]'",
    "starlette": "the policy as a server: pip install 'strop[serve]'",
    "trl": "its trainer with strop's recipes: pip install 'strop[trl]'",
    "verl": "its trainer with strop's recipes: pip install 'strop[verl]'",
    **{CLIENTS.get(name, name): f"a tracker: pip install 'strop[{name}]'" for name in TRACKERS},
}
GIB = 2**30


def machine() -> dict[str, Any]:
    """Versions, devices with memory (GiB), CPU threads and packages of this machine."""
    import torch

    names = ("torch", "transformers")
    return {
        "versions": {"python": platform.python_version(), "strop": VERSION,
                     **{name: version(name) for name in names}},
        "devices": _devices(),
        "threads": {"cores": num_cores(), "torch": torch.get_num_threads()},
        "packages": {name: {"version": _version(name), "for": purpose}
                     for name, purpose in PACKAGES.items()},
    }  # fmt: skip


def memory_gib(device: str) -> float | None:
    """Memory of a device (of the machine for the CPU) in GiB; None when it is unknown."""
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_properties(device).total_memory / GIB
    found = usable_memory() if device == "cpu" else None
    return None if found is None else found / GIB


def _devices() -> list[dict[str, Any]]:
    import torch

    found = [{"device": "cpu", "name": platform.processor() or platform.machine(),
              "memory_gib": memory_gib("cpu")}]  # fmt: skip
    for number in range(torch.cuda.device_count()):
        place = f"cuda:{number}"
        found.append({"device": place, "name": torch.cuda.get_device_name(number),
                      "memory_gib": memory_gib(place)})  # fmt: skip
    return found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def lines(found: dict[str, Any]) -> list[str]:
    """The result of `machine` as text."""
    lines = ["  ".join(f"{name} {number}" for name, number in found["versions"].items())]
    for each in found["devices"]:
        memory = each["memory_gib"]
        size = "" if memory is None else f", {memory:.1f} GiB"
        lines.append(f"{each['device']}: {each['name']}{size}")
    threads = found["threads"]
    lines.append(f"CPU threads: {threads['torch']} used by torch, {threads['cores']} cores")
    for name, each in found["packages"].items():
        lines.append(f"{name}: {each['version'] or 'not installed'} ({each['for']})")
    return lines
