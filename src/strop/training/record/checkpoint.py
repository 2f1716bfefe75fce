"""Checkpoints: a Hugging Face model (or PEFT adapter) folder plus what training needs to resume.

    RUN/checkpoints/step-000050/    config.json, model.safetensors, tokenizer.json, ...
                                    NAME/       (an adapter, of several)
                                    trainer.pt  (optimiser, state of all parts, step)
                                    critic.pt   (heads and optimiser; only with a critic)
                                    reference.pt, anchor.pt, explorer.pt
                                                (copies of the weights that have moved)
                                    engine.pt   (state of the engine; only with engine.staleness)
                                    stores.pt   (files of the run's stores that it refers to)
                                    shards/     (each process's part of these files' tensors; only
                                                 with training.checkpoint=sharded)
                                    files.json  (size and CRC-32 of all of them)

A checkpoint is written beside its place under a name with a leading dot and renamed when it is
whole, so a folder `step-*` is always complete; its checksums reveal later damage. Random
generators are not saved, because all are derived from (seed, step).
"""

import json
import os
import re
import shutil
import zlib
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from strop.engines.weights_folder import FAILURES
from strop.support.errors import RunStopped, UserError, first_line
from strop.support.files import json_of
from strop.support.writing import check_room, writing
from strop.training.learner.critic import Critic
from strop.training.learner.models import Loaded
from strop.training.parallel import shard_files, shards
from strop.training.parallel.ranks import ALONE, Ranks

SUMS = "files.json"
PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
ROOM = 2**20  # bytes for tokenizer, settings and folders beside the tensors


def save(
    folder: Path,
    step: int,
    loaded: Loaded,
    optimiser: torch.optim.Optimizer,
    state: dict[str, Any],
    critic: Critic | None = None,
    held: Mapping[str, Any] = MappingProxyType({}),
    copies: Mapping[str, Mapping[str, Tensor]] = MappingProxyType({}),
    stored: Collection[int] = (),
    ranks: Ranks = ALONE,
    sharded: bool = False,
) -> Path:
    """Write the checkpoint of `step` and return its place. Raises RunStopped on a full disk,
    before anything is written where too little is free, and UserError as `check_state`.

    held: what the engine needs to resume besides the newest weights, if anything. copies: the
    copies of the weights that differ from the initial model, by name. stored: the files of stores
    that the state refers to. ranks: the processes of the run, all of which call this; the first
    writes everything, gathered from the shards. sharded: each process writes its own shards.
    """
    check_state(state)
    place = folder / f"step-{step:06d}"
    unfinished = folder / f".step-{step:06d}"
    trained = {
        "optimiser": optimiser.state_dict(),
        "critic.pt": critic.state_dict() if critic is not None else {},
        **{f"{name}.pt": dict(weights) for name, weights in copies.items()},
    }
    parts: dict[str, torch.Tensor] = {}
    trained = shard_files.split(trained, "", parts) if sharded else shards.saved(trained)
    contents = _contents({"step": step, "state": state}, trained, held, stored)
    what = f"the checkpoint of step {step}"
    needed = ranks.from_first(lambda: _needed(folder, loaded, [contents, parts]))

    def begin() -> None:
        shutil.rmtree(unfinished, ignore_errors=True)
        check_room(folder, what, needed)
        with writing(folder, what, needed, FAILURES, RunStopped):
            unfinished.mkdir(parents=True)
            loaded.save(unfinished)
            for name, content in contents.items():
                if content:
                    torch.save(content, unfinished / name)

    def end() -> None:
        with writing(folder, what, needed, FAILURES, RunStopped):
            _seal(unfinished, place)

    try:
        ranks.from_first(begin, limited=False)
        if parts:
            with writing(folder, what, needed, FAILURES, RunStopped):
                shard_files.write(parts, unfinished / shard_files.FOLDER, ranks.talk)
        ranks.from_first(end, limited=False)
    finally:
        if ranks.first:
            shutil.rmtree(unfinished, ignore_errors=True)
    return place


def check_state(state: Mapping[str, Any]) -> None:
    """Raise UserError for the state of a part that could be written, but not read again: nothing is
    read that names code of its own.
    """
    for path, own in state.items():
        if (kind := _unreadable(own)) is not None:
            raise UserError(
                f"the state of {path} has a {kind.__module__}.{kind.__qualname__}, which cannot be "
                "kept in a checkpoint: take Python's own numbers, texts, lists, tuples, sets and "
                "dicts, and torch's tensors"
            )


def _unreadable(value: object) -> type | None:
    """The type of the first thing in a value that `read` refuses; None where there is none."""
    kind = type(value)
    if kind in (dict, OrderedDict, Counter):
        inner = chain.from_iterable(value.items())  # type: ignore[attr-defined]
    elif kind in (list, tuple, set):
        inner = value  # type: ignore[assignment]
    else:
        return None if kind in PLAIN or isinstance(value, torch.Tensor) else kind
    return next(filter(None, map(_unreadable, inner)), None)


def _contents(
    counted: dict[str, Any], trained: Mapping[str, Any], held: Mapping[str, Any],
    stored: Collection[int],
) -> dict[str, Any]:  # fmt: skip
    """The files beside the model, by name; empty ones are not written."""
    return {
        "trainer.pt": {**counted, "optimiser": trained["optimiser"]},
        "engine.pt": dict(held),
        **{name: each for name, each in trained.items() if name.endswith(".pt")},
        "stores.pt": {"files": sorted(stored)} if stored else {},
    }


def _seal(unfinished: Path, place: Path) -> None:
    """Write the checksums, flush all files to the disk, and give the folder its final name."""
    sums = json.dumps(_sums(unfinished), indent=1)
    (unfinished / SUMS).write_text(sums, encoding="utf-8")
    for path in unfinished.rglob("*"):
        _flush(path)
    if place.exists():
        _remove(place)
    unfinished.rename(place)
    _flush(place.parent)


def _needed(folder: Path, loaded: Loaded, contents: list[Any]) -> int:
    """Returns the bytes of a checkpoint: those of its tensors, at least as many as the last one."""
    numbers = loaded.num_bytes() + _bytes_in(contents)
    last = complete(folder)[-1:]
    before = [path.stat().st_size for place in last for path in place.rglob("*") if path.is_file()]
    return max(numbers, sum(before)) + ROOM


def _bytes_in(value: object) -> int:
    """Bytes of the tensors in nested tables and lists."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(map(_bytes_in, value.values()))
    return sum(map(_bytes_in, value)) if isinstance(value, list | tuple) else 0


def prune(folder: Path, keep: int, best: int = 0) -> None:
    """Delete all checkpoints but the newest `keep` and that of the step `best` (0: none); also
    delete unfinished ones.
    """
    for path in complete(folder)[:-keep]:
        if not best or step_of(path) != best:
            _remove(path)
    for path in folder.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def complete(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first; later damage shows when one is read."""
    return sorted(filter(is_checkpoint, folder.glob("step-*")), key=step_of)


def is_checkpoint(place: Path) -> bool:
    """Whether a folder has the name of a checkpoint."""
    return re.fullmatch("step-[0-9]+", place.name) is not None


def newest(folder: Path) -> Path:
    """The newest complete checkpoint. Raises UserError when there is none."""
    found = complete(folder)
    if not found:
        raise UserError(
            f"{folder} holds no complete checkpoint: a run writes one every training.save_every "
            "steps, at its end, and when it is asked to stop"
        )
    return found[-1]


def stored_in(place: Path) -> set[int]:
    """The files of stores that a complete checkpoint refers to. Raises UserError where it is
    damaged.
    """
    if not (place / "stores.pt").exists():
        return set()
    held = read(place, "stores.pt")
    with naming_the_file(place, "stores.pt"):
        return {int(number) for number in held["files"]}


def forget_after(folder: Path, step: int) -> None:
    """Delete the checkpoints of later steps."""
    for path in complete(folder):
        if step_of(path) > step:
            _remove(path)


def at(folder: Path, step: int = 0) -> Path:
    """The checkpoint of `step` (0: the newest one), after a check of its checksums.

    Raises UserError when there is none, and for a damaged one, with how to take an earlier one.
    """
    place = folder / f"step-{step:06d}" if step else newest(folder)
    if place not in complete(folder):
        have = ", ".join(path.name for path in complete(folder)) or "none"
        raise UserError(f"{folder.parent} has no checkpoint of step {step}; it has {have}")
    with naming_the_one_before(place):
        _check(place)
    return place


@contextmanager
def naming_the_one_before(place: Path) -> Iterator[None]:
    """Extends a UserError raised inside with how to resume without the checkpoint in `place`."""
    try:
        yield
    except UserError as error:
        known = [step_of(path) for path in complete(place.parent)]
        earlier = [step for step in known if step < step_of(place)]
        hint = f"--step {earlier[-1]} takes the one before" if earlier else "there is none before"
        if earlier[-1:] == [0]:  # as an option, 0 is the newest one
            hint = "move its folder away, and the one before, of step 0, is taken"
        raise UserError(f"{error}; {hint}") from error


@contextmanager
def naming_the_file(place: Path, name: str) -> Iterator[None]:
    """Inside, the content of a checkpoint's file `name` is restored. Raises UserError where it does
    not fit, which no checksum reveals in a checkpoint without sums.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise UserError(
            f"the checkpoint {place} cannot be used: {name} does not fit: {why}"
        ) from error


def step_of(place: Path) -> int:
    """The step of a checkpoint, by its name."""
    return int(place.name.removeprefix("step-"))


def unchecked(place: Path) -> list[str]:
    """Returns a note for a checkpoint without checksums, such as one of an older version."""
    if (place / SUMS).exists():
        return []
    return [f"{place} has no {SUMS}: whether its files were changed later cannot be checked"]


def _check(place: Path) -> None:
    """Raise UserError for the first file that differs from its checksum."""
    if unchecked(place):
        return
    try:
        written = json_of((place / SUMS).read_bytes())
        sums = {str(name): (int(size), int(crc)) for name, (size, crc) in written.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"the checkpoint {place} cannot be read: {SUMS} is damaged") from error
    for name, (size, crc) in sums.items():
        path = place / name
        found = _size_of(path)
        if found != size:
            has = "is missing" if found is None else f"has {found} of {size} bytes"
            raise UserError(f"the checkpoint {place} cannot be read: {name} {has}")
        if _crc(path) != crc:
            raise UserError(f"the checkpoint {place} cannot be read: {name} has changed")


def _size_of(path: Path) -> int | None:
    """Bytes of a file; None where there is none, nor could be by that name."""
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return None


def _sums(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and CRC-32 of every file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(f.relative_to(folder)): (f.stat().st_size, _crc(f)) for f in files}


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


def read(place: Path, name: str = "trainer.pt") -> dict[str, Any]:
    """Step, optimiser and state of a checkpoint, or the content of its file `name`.

    Raises UserError when it cannot be read.
    """
    try:
        found = torch.load(place / name, weights_only=True, map_location="cpu")
        return dict(shard_files.joined(found, place / shard_files.FOLDER))
    except Exception as error:
        why = first_line(error)
        raise UserError(f"the checkpoint {place} cannot be read: {name}: {why}") from error


def _remove(place: Path) -> None:
    """Rename and then delete a checkpoint, so that a partial one never looks complete."""
    condemned = place.with_name(f".{place.name}-old")
    shutil.rmtree(condemned, ignore_errors=True)
    place.rename(condemned)
    shutil.rmtree(condemned)


def _flush(path: Path) -> None:
    """Make sure that written data have reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
