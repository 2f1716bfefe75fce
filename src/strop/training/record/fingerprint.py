"""Fingerprints a run's data by row count and checksum, so a resumed run notices other data."""

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strop.data.prompt_rows import PromptRows, looked_at
from strop.data.prompts import Prompt
from strop.environments.tasks import Task
from strop.support.errors import UserError
from strop.support.files import json_of
from strop.training.settings.config import RunConfig
from strop.training.settings.sections import RaySettings, TrackingSettings

NAME = "data.json"


def fingerprint(task: Task) -> dict[str, dict[str, int]]:
    """Returns the fingerprint of each split that a run reads, in its order."""
    others = {"validation": task.validation, **task.sets}
    return {"train": of_training(task), **{name: _of(rows) for name, rows in others.items()}}


def of_training(task: Task) -> dict[str, int]:
    """Returns the fingerprint of the rows that a run trains on."""
    found = _of(task.train)
    if task.traces is not None:  # rows are prompts alone
        found["crc32"] = zlib.crc32(str(task.traces.crc()).encode(), found["crc32"])
    return found


def check_same(
    folder: Path, now: dict[str, dict[str, int]], otherwise: str = "start a new run"
) -> None:
    """Raise UserError when the run in `folder` was started over other data.

    now: the fingerprints of some of its splits, or all. otherwise: what to do without the same.
    """
    path = folder / NAME
    if not path.exists():  # started before runs had it
        return
    try:
        then = json_of(path.read_bytes())
        wrong = [name for name in now if then[name] != now[name]]
        rows = {name: int(then[name]["rows"]) for name in now}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read: restore it, or remove it to continue without it"
        ) from error
    for name in wrong:
        raise UserError(
            f"the {name} data is not what {folder} was started with: {now[name]['rows']} rows now, "
            f"{rows[name]} then, and their text or order differs; give the same data, or "
            f"{otherwise}"
        )


def owner_of(config: RunConfig, crc32: int, tokenizer: Any) -> dict[str, int]:
    """Returns the owner of a store: checksums of the fixed settings and of the tokenizer.

    crc32: the training rows' in their fingerprint.
    """
    # A resumed run may have other settings of these two; their defaults stand for all.
    usual = config.model_copy(update={"ray": RaySettings(), "tracking": TrackingSettings()})
    settled = usual.model_dump(exclude={"training", "evaluation", "threads"}, mode="json")
    words = sorted(tokenizer.get_vocab().items())
    texts = {
        "run": f"{crc32} {json.dumps(settled, sort_keys=True)}",
        "tokenizer": json.dumps(words),
    }
    return {name: zlib.crc32(text.encode()) for name, text in texts.items()}


def _of(rows: Sequence[Prompt]) -> dict[str, int]:
    return {"rows": len(rows), "crc32": _crc(rows)}


def _crc(prompts: Sequence[Prompt]) -> int:
    crc, text_of = 0, json.JSONEncoder(default=_plain).encode
    for prompt in looked_at(prompts):
        row = [prompt.uid, prompt.prompt, dict(prompt.columns)]
        crc = zlib.crc32(text_of(row).encode(), crc)
    unseen = prompts.pack.crc() if isinstance(prompts, PromptRows) else 0
    return zlib.crc32(str(unseen).encode(), crc) if unseen else crc


def _plain(value: object) -> str:
    """Convert a value that JSON cannot hold: bytes to hex digits, others to their type name."""
    return value.hex() if isinstance(value, bytes) else type(value).__name__
