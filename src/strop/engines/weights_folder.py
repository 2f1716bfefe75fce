"""Hands versions of a model's weights to another process; each is complete or does not exist."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from strop.support.adapted import BASE, PARAMETERS, routes_of
from strop.support.errors import RunStopped, UserError
from strop.support.model_files import save_model
from strop.support.writing import writing

IN_MEMORY = Path("/dev/shm")  # of Linux; files there lie in main memory
PREFIX = "strop-weights-"
JUST_MADE_SECONDS = 60.0  # a younger folder may not be locked yet
NOT_PLAIN = (
    "the model's adapter {}, which this engine cannot be given: merge it first with strop export, "
    "or take engine.kind=local"
)
FAILURES = (OSError, RuntimeError, SafetensorError)  # three names for a full disk


class WeightsFolder:
    """A folder in memory if there is room, else on disk; the reader of a version deletes it.

    `close` deletes the folder. The folder of a killed process is deleted when the next one is made:
    each process holds a lock on its folder, which the kernel releases.
    """

    def __init__(self, size: int, advice: str, chosen: str = "") -> None:
        """size: most bytes at a time. chosen: the place, if it matters.

        Raises UserError where there is no room; advice: what its message says to do.
        """
        self.size = size
        places = [Path(chosen)] if chosen else [IN_MEMORY, Path(tempfile.gettempdir())]
        if chosen and not Path(chosen).is_dir():
            raise UserError(f"{chosen} is no folder, so no weights can be put there: {advice}")
        for place in filter(Path.is_dir, places):
            _sweep(place)
            if shutil.disk_usage(place).free > size and os.access(place, os.W_OK):
                self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
                self.handle = os.open(self.path, os.O_RDONLY)
                _locked(self.handle)
                return
        raise UserError(
            f"no room for the model's weights, {size / 2**30:.1f} GiB, in "
            f"{' or '.join(map(str, places))}: {advice}"
        )

    def put(self, name: str, save: Callable[[Path], object]) -> Path:
        """Call `save` to write a file or folder, and return its path, which exists only when it is
        complete. Raises RunStopped where it cannot be written.
        """
        unfinished, path = self.path / f".{name}", self.path / name
        try:
            with writing(self.path, "the model's weights", self.size, FAILURES, RunStopped):
                save(unfinished)
                unfinished.rename(path)
        finally:
            _delete(unfinished)
        return path

    def clear(self) -> None:
        """Delete all versions that nobody has read."""
        for path in self.path.iterdir():
            _delete(path)

    def close(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


def write(model: Any, folder: WeightsFolder, name: str, base: bool = False) -> Path:
    """Write the model with the weights of `merged`, in Hugging Face's layout."""
    weights = merged(model, base)
    return folder.put(name, lambda path: save_model(model, path, state_dict=weights))


def adapters_of(model: nn.Module) -> tuple[str, ...]:
    """The names of the model's adapters, after BASE if there are several; empty without any."""
    if (routes := routes_of(model)) is not None:
        return (BASE, *routes.known)
    found = (getattr(module, "active_adapters", ()) for module in model.modules()
             if hasattr(module, "get_delta_weight"))  # fmt: skip
    return tuple(next(found, ()))


def rank_of(model: nn.Module) -> int:
    """The largest rank of the model's adapters; 0 where it has none."""
    ranks = [rank for module in model.modules() for rank in getattr(module, "r", {}).values()]
    return max(ranks, default=0)


def check_plain(model: nn.Module) -> None:
    """Raise UserError for an adapter with more than A and B beside linear layers, which cannot be
    handed over.
    """
    for module in model.modules():
        layer: Any = module
        beside = getattr(layer, "lora_B", {}).values()
        for what, found in (
            ("is a DoRA", getattr(layer, "lora_magnitude_vector", ())),
            ("changes the embeddings", getattr(layer, "lora_embedding_A", ())),
            ("has biases", [each for each in beside if each.bias is not None]),
            ("has whole modules", getattr(layer, "modules_to_save", ())),
        ):
            if found:
                raise UserError(NOT_PLAIN.format(what))


def merged(model: nn.Module, base: bool = False) -> dict[str, Tensor]:
    """The weights by their names in a model without adapters: W + alpha / rank * B A in place of W,
    or W alone where there are several adapters. base: W alone in any case. Raises UserError for
    adapters of another kind.
    """
    check_plain(model)
    own, several = model.state_dict(), base or routes_of(model) is not None
    for name, module in model.named_modules():
        if not hasattr(module, "get_delta_weight"):
            continue
        plain = f"{name}.base_layer."
        found = {key: own.pop(key) for key in [*own] if key.startswith(f"{name}.")}
        own |= {f"{name}.{key.removeprefix(plain)}": value for key, value in found.items()
                if key.startswith(plain)}  # fmt: skip
        for adapter in () if several else module.active_adapters:
            weight = own[f"{name}.weight"]  # its precision is kept: PEFT's adapters are float32
            own[f"{name}.weight"] = (weight + module.get_delta_weight(adapter)).to(weight.dtype)
    return own


def write_adapter(model: nn.Module, folder: WeightsFolder, adapter: str, name: str) -> Path:
    """Write one of the model's adapters in PEFT's layout; BASE becomes an adapter that adds 0.

    Raises UserError for an adapter of another kind.
    """
    check_plain(model)
    routes, factor = routes_of(model), float(adapter != BASE)
    if routes is not None and adapter == BASE:
        adapter = routes.known[0]
    layers = {
        path: module for path, module in model.named_modules()
        if adapter in getattr(module, "lora_A", {})
    }  # fmt: skip
    first: Any = next(iter(layers.values()))
    rank = int(first.r[adapter])
    if len({(each.r[adapter], each.scaling[adapter]) for each in layers.values()}) > 1:
        raise UserError(NOT_PLAIN.format("has layers of several ranks or factors"))
    settings = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "r": rank,
        "lora_alpha": first.scaling[adapter] * rank * factor,
        "target_modules": sorted({path.rpartition(".")[2] for path in layers}),
    }  # fmt: skip
    weights = {
        f"base_model.model.{path}.{kind}.weight": getattr(module, kind)[adapter].weight.detach()
        for path, module in layers.items()
        for kind in PARAMETERS
    }

    def save(path: Path) -> None:
        path.mkdir()
        save_file({key: value.contiguous() for key, value in weights.items()},
                  path / "adapter_model.safetensors")  # fmt: skip
        (path / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")

    return folder.put(name, save)


def _sweep(place: Path) -> None:
    """Delete the folders in a place whose processes are gone."""
    for path in place.glob(f"{PREFIX}*"):
        try:
            # Another user's pipe of such a name would hold this up, and a link leads elsewhere.
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # it was just deleted, or belongs to another user
            continue
        try:
            old = time.time() - os.fstat(handle).st_mtime > JUST_MADE_SECONDS
            if old and _locked(handle):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(handle)


def _locked(handle: int) -> bool:
    """Lock a folder until its handle is closed; returns whether that succeeded.

    It fails where another process has the lock, and on a disk without locks, where folders are
    never swept.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _delete(path: Path) -> None:
    """Delete a file or folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
