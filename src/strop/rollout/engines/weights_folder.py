"""A model's weights in a folder that another process reads, whole or not there at all."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from strop.errors import UserError

IN_MEMORY = Path("/dev/shm")  # of Linux; files there lie in main memory


def place_for(model: nn.Module, chosen: str) -> Path:
    """A new folder with room for the weights: in the chosen one, else in memory, else on disk.

    Raises UserError where there is none.
    """
    needed = sum(p.numel() * p.element_size() for p in model.parameters())
    places = [Path(chosen)] if chosen else [IN_MEMORY, Path(tempfile.gettempdir())]
    for place in places:
        if place.is_dir() and shutil.disk_usage(place).free > needed:
            return Path(tempfile.mkdtemp(prefix="strop-weights-", dir=place))
    raise UserError(
        f"no room for the model's weights, {needed / 2**30:.1f} GiB, in "
        f"{' or '.join(map(str, places))}: give engine.folder a place that this process and the "
        "server see"
    )


def write(model: Any, folder: Path) -> None:
    """Write model and weights in Hugging Face's layout; adapters are added into the weights.

    Raises UserError for a full disk.
    """
    unfinished = folder.with_name(f".{folder.name}")
    try:
        model.save_pretrained(unfinished, state_dict=merged(model))
        unfinished.rename(folder)
    except OSError as error:
        raise UserError(f"the weights cannot be written to {folder}: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def merged(model: nn.Module) -> dict[str, Tensor]:
    """The weights by their names without adapters: W + alpha / rank * B A in place of W."""
    own = model.state_dict()
    for name, module in model.named_modules():
        if not hasattr(module, "get_delta_weight"):
            continue
        plain = f"{name}.base_layer."
        found = {key: own.pop(key) for key in [*own] if key.startswith(f"{name}.")}
        own |= {f"{name}.{key.removeprefix(plain)}": value for key, value in found.items()
                if key.startswith(plain)}  # fmt: skip
        for adapter in module.active_adapters:
            own[f"{name}.weight"] = own[f"{name}.weight"] + module.get_delta_weight(adapter)
    return own
