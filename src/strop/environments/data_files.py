"""Builds a task from the user's own rows: files, folders and data sets of `datasets`."""

import random
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from strop.data.prompt_rows import Many, Pack, PromptRows, stride, those
from strop.data.prompts import Origin, Prompt, text_of_parts
from strop.data.read import Row, Source, named_sources, open_source
from strop.data.row_layouts import Reader, Renaming, asked_in, from_question, reader_of, renamed
from strop.environments.tasks import Task, check_columns
from strop.support.errors import UserError, did_you_mean

NOTHING: Mapping[str, Any] = MappingProxyType({})
Split = str | Path | int | float | Sequence[str | Path]


def load_data(
    files: str | Path | Sequence[str | Path],
    *,
    validation: Split = 0,
    heldout: Split = 0,
    prompt_column: str = "prompt",
    reader: Reader | str = "auto",
    columns: Mapping[str, str] = NOTHING,
    sets: Mapping[str, Sequence[str | Path]] = NOTHING,
    weights: Sequence[float] = (),
    uses_columns: bool = False,
) -> Task:
    """Build a task from files whose rows have a prompt (text or chat messages) and any columns.

    `validation` and `heldout` are a second file, or rows split off the training files: a count
    (an int) or a fraction (a float below 1). The split depends on the number of rows alone, and
    such a row keeps the uid of its place in the files. Columns that a row lacks are None. `columns`
    renames columns, theirs to ours; after that `reader` translates rows of another layout: a
    function or a name of `row_layouts.LAYOUTS`. `prompt_column` is the prompt's column after both.
    `sets` are further files for validation, by the name of their set. Training files may be given
    as NAME=FILE; `weights` say how often each is drawn. uses_columns: a column to rename that no
    file has is an error, even where all files have its new name.

    Raises UserError, naming file and line or row, for anything that cannot be read.
    """
    named = named_sources(_paths(files))
    paths = [path for _, path in named]
    others = [each for each in (validation, heldout, *sets.values())
              if not isinstance(each, (int, float))]  # fmt: skip
    load = _Loader(prompt_column, reader, columns, [paths, *others])
    first = load(paths, 0)
    rest: Sequence[int] = range(len(first))
    splits: dict[str, Sequence[Prompt]] = {}
    for number, (split, given) in enumerate((("validation", validation), ("heldout", heldout)), 1):
        if isinstance(given, (int, float)):
            taken = _carve(rest, len(first), given, split, random.Random(f"0/{split}"))
            if taken:
                rest = array("q", (row for row in rest if row not in taken))
            splits[split] = those(first, sorted(taken))
        else:
            splits[split] = load(given, number)
    names = [name for name, _ in named]
    validated = {name: load(given, number) for number, (name, given) in enumerate(sets.items(), 3)}
    if uses_columns:
        load.renaming.check_used()
    return Task(
        name="+".join(names),
        origins=_origins(names, first, weights),
        train=those(first, rest),
        validation=splits["validation"],
        heldout=splits["heldout"],
        rewards=(),
        answer="strop.rewards.answers:extract_answer",
        sets=validated,
    )


def _origins(
    names: Sequence[str], rows: PromptRows, weights: Sequence[float]
) -> tuple[Origin, ...]:
    """The origins of the prompts of several sources. Raises UserError."""
    if weights and len(weights) != len(names):
        raise UserError(
            f"data.weights has {len(weights)} numbers for {len(names)} sources "
            f"({', '.join(names)}): give one for each"
        )
    if len(names) == 1:
        return ()
    sources = zip(names, rows.pack.ends_of_sources(), weights or (1.0,) * len(names), strict=True)
    return tuple(Origin(*each) for each in sources)


class _Loader:
    """Reads and checks the rows of sources, each of its own layout.

    files: all that will be read, so that a name is sought in all of them.
    """

    def __init__(
        self, prompt_column: str, reader: Reader | str, columns: Mapping[str, str],
        files: Sequence[str | Path | Sequence[str | Path]],
    ) -> None:  # fmt: skip
        self.prompt_column = prompt_column
        self.reader = reader
        self.renaming = Renaming(columns)
        self.sources = {path: open_source(path) for each in files for path in _paths(each)}
        self.renaming.check([(source.name, source[0]) for source in self.sources.values()])

    def __call__(self, files: str | Path | Sequence[str | Path], split: int) -> PromptRows:
        """The prompts of a split, by its index: few are stored, many are read when drawn."""
        laid = [_Laid(self, self.sources[path]) for path in _paths(files)]
        if stride(sum(map(len, laid))) > 1:
            many = Many(split, laid)
            many.look()
            return PromptRows(many)
        pack = Pack(split)
        for source in laid:
            pack.begin(source.name, source.column)
            for row in range(len(source)):
                pack.add(*source.read(row))
        return PromptRows(pack)


class _Laid:
    """The rows of a source as prompts with columns: renamed, translated, checked."""

    def __init__(self, given: _Loader, source: Source) -> None:
        self.source, self.name = source, source.name
        first = source[0]
        self.prompt_column = given.prompt_column
        self.renaming = given.renaming
        names = self.renaming.of_row(first)
        ours = {names.get(name, name): value for name, value in first.items()}
        self.reader = reader_of(given.reader, ours, given.prompt_column)
        stood = asked_in(ours) if self.reader is from_question else given.prompt_column
        self.column = next((theirs for theirs, our in names.items() if our == stood), stood)

    def __len__(self) -> int:
        return len(self.source)

    def crc(self) -> int:
        """The checksum of the source."""
        return self.source.crc()

    def read(self, row: int) -> tuple[str | list[dict[str, Any]], Row, str]:
        """The prompt, the columns and the place of a row. Raises UserError."""
        place = f"{self.name} row {row + 1}"
        given = self.source[row]
        plain = renamed(given, self.renaming.of_row(given), place)
        plain = plain if self.reader is None else _translated(self.reader, plain, place)
        prompt = self._checked(plain, place)
        return prompt, {k: v for k, v in plain.items() if k != self.prompt_column}, place

    def _checked(self, row: Row, where: str) -> str | list[dict[str, Any]]:
        """The row's prompt. Raises UserError for a row without one, or with names that clash."""
        column = self.prompt_column
        if column not in row:
            raise UserError(
                f"{where} has no column {column!r}{did_you_mean(column, row)}; its columns are "
                f"{', '.join(row) or 'none'}: rename one or set data.prompt_column"
            )
        check_columns(row, where)
        if column != "prompt" and "prompt" in row:
            raise UserError(f"{where} has both {column!r} and 'prompt': rename or remove 'prompt'")
        return checked_prompt(row[column], where)


def _translated(reader: Reader, row: Row, where: str) -> Row:
    try:
        return dict(reader(row))
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def checked_prompt(prompt: Any, where: str) -> str | list[dict[str, Any]]:
    """Return the prompt if it is text or well-formed messages, without keys that are None.

    Otherwise raises UserError, whose message begins with `where`.
    """
    if isinstance(prompt, str):
        if not prompt:
            raise UserError(f"{where} has an empty prompt: give it text or remove the row")
        return prompt
    if not isinstance(prompt, list):
        raise UserError(
            f"{where} has a prompt of type {type(prompt).__name__}: it must be text or a list of "
            "messages with role and content"
        )
    if not prompt:
        raise UserError(f"{where} has an empty list of messages: add one or remove the row")
    return [_checked_message(m, f"{where}, message {i}") for i, m in enumerate(prompt, 1)]


def _checked_message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise UserError(f"{where} is {type(message).__name__}, not an object with role and content")
    calls_a_tool = message.get("tool_calls") is not None
    message = {"content": None, **message} if calls_a_tool else message
    for key in ("role", "content"):
        if key not in message:
            keys = ", ".join(map(str, message)) or "none"
            raise UserError(f"{where} has no {key!r}; its keys are {keys}: add it")
    message = {**message, "content": text_of_parts(message["content"])}
    if not isinstance(message["role"], str) or not (
        isinstance(message["content"], str) or (calls_a_tool and message["content"] is None)
    ):
        raise UserError(
            f"{where} has a role or content that is not text: make both text, "
            "the content also as parts of the type text"
        )
    return {k: v for k, v in message.items() if v is not None or k == "content"}


def _carve(
    rest: Sequence[int], num_rows: int, given: int | float, split: str, rng: random.Random
) -> set[int]:
    if isinstance(given, bool) or given < 0 or (isinstance(given, float) and not given < 1):
        raise UserError(
            f"{split} is {given!r}: give a file, a count of rows, or a fraction below 1"
        )
    count = given if isinstance(given, int) else round(given * num_rows)
    if given and not 0 < count < len(rest):
        raise UserError(
            f"{split}={given} takes {count} of {len(rest)} rows, which leaves a split empty: "
            "choose another size or give a file"
        )
    return set(rng.sample(rest, count))


def _paths(files: str | Path | Sequence[str | Path]) -> list[str | Path]:
    several = [files] if isinstance(files, (str, Path)) else list(files)
    if not several:
        raise UserError("no data file was given: name at least one")
    return several
