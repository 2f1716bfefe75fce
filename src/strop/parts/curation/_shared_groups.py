"""Groups of answers that several runs share, as texts, in a folder that all of them see.

    FOLDER/NODE.json    the groups of a run's newest step; only that run writes it

A file is replaced as a whole. The files of other runs are treated as data only: they are read as
JSON, and those of another shape are skipped and counted.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from strop.batch.batch import Batch
from strop.method.services import Sampling, Texts
from strop.support.errors import UserError
from strop.support.files import well_formed
from strop.support.writing import write_whole

MOST_BYTES = 2**26  # of a file


class Shared(NamedTuple):
    """A group: the prompt's uid and text, and its answers, each with whether it ended by itself."""

    node: str
    step: int
    uid: int
    prompt: str
    answers: tuple[tuple[str, bool], ...]


def share(folder: Path, node: str, step: int, groups: Sequence[Shared]) -> None:
    """Publish the groups of this step. Raises UserError if they cannot be written."""
    table = {
        "step": step,
        "groups": [{"uid": g.uid, "prompt": g.prompt, "answers": g.answers} for g in groups],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{node}.json", json.dumps(table))
    except OSError as error:
        raise UserError(
            f"the step's answers could not be shared in {folder}: {error}: give a folder that can "
            "be written, or none"
        ) from error


def of_others(
    folder: Path, node: str, read: Mapping[str, int]
) -> tuple[list[Shared], dict[str, int], int]:
    """Groups that are newer than the steps in `read`, the steps read by now, unreadable files."""
    found, now, broken = list[Shared](), dict(read), 0
    for path in sorted(folder.glob("*.json")):
        if path.stem == node:
            continue
        try:
            if path.stat().st_size > MOST_BYTES:
                raise ValueError("too large")
            table = well_formed(json.loads(path.read_bytes()))
            step = int(table["step"])
            groups = [_group(path.stem, step, g) for g in table["groups"]]
        except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
            broken += 1
            continue
        if read.get(path.stem) != step:
            now[path.stem] = step
            found += groups
    return found, now, broken


def _group(node: str, step: int, raw: Mapping[str, Any]) -> Shared:
    """One group of a file. Raises TypeError, LookupError or ValueError if it is malformed."""
    answers = tuple((text, ended) for text, ended in raw["answers"])
    odd = [a for a in answers if not isinstance(a[0], str) or not isinstance(a[1], bool)]
    if odd or not isinstance(raw["prompt"], str) or not isinstance(raw["uid"], int):
        raise TypeError("no group of answers")
    return Shared(node, step, raw["uid"], raw["prompt"], answers)


def groups_of(batch: Batch, texts: Texts, node: str) -> list[Shared]:
    """The groups of the batch in the form that other runs read."""
    _, completions = texts.decoded(batch)
    answers: list[list[tuple[str, bool]]] = [[] for _ in range(batch.size("P"))]
    rows = zip(batch["group_B"].tolist(), completions, batch["truncated_B"].tolist(), strict=True)
    for group, text, truncated in rows:
        answers[group].append((text, not truncated))
    step = int(batch["step"])
    return [
        Shared(node, step, uid, texts.question(uid), tuple(each))
        for uid, each in zip(batch["uid_P"].tolist(), answers, strict=True)
    ]


def fits(group: Shared, size: int, texts: Texts, sampling: Sampling) -> bool:
    """Whether the group has a prompt of this run and `size` answers, none empty or too long."""
    if len(group.answers) != size:
        return False
    try:
        known = texts.question(group.uid) == group.prompt
    except KeyError:
        return False
    most = sampling.answer_tokens
    return known and all(0 < len(ids_of(a, texts, sampling)) <= most for a in group.answers)


def ids_of(answer: tuple[str, bool], texts: Texts, sampling: Sampling) -> tuple[int, ...]:
    """An answer's tokens, with a stop token if it ended by itself."""
    text, ended = answer
    return (*texts.encode(text), *(sampling.stop_ids[:1] if ended else ()))


def number_of(name: str) -> int:
    """A number of 62 bits, the hash of a name."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2
