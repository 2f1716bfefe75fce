"""Checkpoints: a Hugging Face model (or PEFT adapter) folder plus what training needs to go on.

    RUN/checkpoints/step-000050/    config.json, model.safetensors, tokenizer.json, ...
                                    trainer.pt  (optimiser, state of all parts, step)
                                    critic.pt   (heads and optimiser; only with a critic)
                                    engine.pt   (what the engine holds; only with engine.staleness)

A checkpoint is written beside its place under a name with a leading dot and renamed when it is
whole, so a folder `step-*` is always complete. Random generators need no place in it: all are
derived from (seed, step).
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError

from strop.errors import RunStopped, UserError


def save(
    folder: Path,
    step: int,
    loaded: Any,
    optimiser: Any,
    state: dict[str, Any],
    critic: Any = None,
    held: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Write the checkpoint of `step` and return its place. Raises RunStopped on a full disk.

    held: what the engine needs to go on beside the newest weights, if anything.
    """
    place = folder / f"step-{step:06d}"
    unfinished = folder / f".step-{step:06d}"
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        loaded.save(unfinished)
        trainer = {"step": step, "optimiser": optimiser.state_dict(), "state": state}
        torch.save(trainer, unfinished / "trainer.pt")
        if critic is not None:
            torch.save(critic.state_dict(), unfinished / "critic.pt")
        if held:
            torch.save(dict(held), unfinished / "engine.pt")
        for path in unfinished.iterdir():
            _flush(path)
        if place.exists():
            _remove(place)
        unfinished.rename(place)
        _flush(folder)
    except (OSError, RuntimeError, SafetensorError) as error:  # three names for a full disk
        shutil.rmtree(unfinished, ignore_errors=True)
        raise RunStopped(
            f"the checkpoint of step {step} could not be written to {folder}: {error}; free some "
            "room, the last complete checkpoint is still there"
        ) from error
    return place


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints and whatever was left unfinished."""
    for path in complete(folder)[:-keep]:
        _remove(path)
    for path in folder.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def complete(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / "trainer.pt").is_file())


def newest(folder: Path) -> Path:
    """The newest complete checkpoint. Raises UserError when there is none."""
    found = complete(folder)
    if not found:
        raise UserError(f"{folder} holds no complete checkpoint")
    return found[-1]


def read(place: Path, name: str = "trainer.pt") -> dict[str, Any]:
    """Step, optimiser and state of a checkpoint, or what its file `name` holds.

    Raises UserError when it cannot be read.
    """
    try:
        return torch.load(place / name, weights_only=True, map_location="cpu")
    except Exception as error:
        raise UserError(f"the checkpoint {place} cannot be read: {error}") from error


def _remove(place: Path) -> None:
    """Delete a checkpoint; it first loses its name, so half of one never looks complete."""
    condemned = place.with_name(f".{place.name}-old")
    shutil.rmtree(condemned, ignore_errors=True)
    place.rename(condemned)
    shutil.rmtree(condemned)


def _flush(path: Path) -> None:
    """Make sure that what was written has reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
