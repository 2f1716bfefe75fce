"""Converts rows of other frameworks' data sets to rows with a `prompt`.

    verl        data_source, prompt, reward_model {style, ground_truth}, extra_info; also SkyRL's
                reward_spec {method, ground_truth}
    question    question or problem, answer; GSM8K's answers end in "#### 72"
    messages    messages, or chosen and rejected: conversations as TRL has them, prompt and answer;
                conversations, of messages with from and value, as ShareGPT has them

The first two add the column `ground_truth`, which rewards compare with first; others are kept.
Columns have strop's names, or those that a reward reads.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strop.support.errors import UserError, did_you_mean
from strop.support.files import json_of

Row = dict[str, Any]
# Turns a row of another layout into one with a `prompt`; None as result is not allowed.
Reader = Callable[[Mapping[str, Any]], Mapping[str, Any]]

_HOLDERS = ("reward_model", "reward_spec")
_ASKED = ("question", "problem")
# The roles of those who speak in ShareGPT's conversations.
_ROLES = {
    "system": "system", "human": "user", "user": "user", "gpt": "assistant",
    "assistant": "assistant", "observation": "tool", "tool": "tool",
}  # fmt: skip
# Commas only where they separate thousands: "1,2" is a pair.
_NUMBER = re.compile(r"[-+]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")


def reader_of(layout: str | Reader, first: Row, prompt_column: str) -> Reader | None:
    """The reader of a layout by name; "auto" chooses by the columns of the first row.

    None: the rows have their prompts already. Raises UserError for an unknown layout.
    """
    if not isinstance(layout, str):
        return layout
    if layout not in LAYOUTS:
        raise UserError(
            f"data.reader = {layout!r} is unknown{did_you_mean(layout, LAYOUTS)}: it is one of "
            f"{', '.join(LAYOUTS)}"
        )
    if layout != "auto":
        return LAYOUTS[layout]
    if prompt_column != "prompt":
        return None
    if "prompt" in first:
        holds = any("ground_truth" in _mapping(first.get(name)) for name in _HOLDERS)
        return from_verl if holds else None
    if asked_in(first) in first and "answer" in first:
        return from_question
    pair = isinstance(first.get("chosen"), list) and "rejected" in first
    return from_messages if pair or "messages" in first or "conversations" in first else None


def asked_in(row: Mapping[str, Any]) -> str:
    """The column of a row that holds its question: `question`, or `problem` in its place."""
    return next((name for name in _ASKED if name in row), _ASKED[0])


def from_verl(row: Mapping[str, Any]) -> Row:
    """Convert a row of verl or SkyRL: lift the nested reference, keep data_source and extra_info.

    Raises UserError for a row without a reference.
    """
    for name in _HOLDERS:
        held = _mapping(row.get(name))
        if "ground_truth" in held:
            extra = row.get("extra_info")
            info = {"extra_info": _mapping(extra) or extra or {}} if "extra_info" in row else {}
            return {**row, **info, "ground_truth": held["ground_truth"]}
    raise UserError(
        "a row has neither reward_model.ground_truth nor reward_spec.ground_truth: add it, or set "
        "data.reader to the layout of your rows"
    )


def from_question(row: Mapping[str, Any]) -> Row:
    """Convert a question to the prompt, and the end of the answer after "####" to the ground truth.

    A column `problem` is read where there is no `question`.
    An answer without "####" is the ground truth as a whole. Thousands separators and a dollar sign
    are removed from a ground truth that is a number. A `ground_truth` of the row stays. Raises
    UserError for a row without both columns.
    """
    asked = asked_in(row)
    missing = [name for name in (asked, "answer") if name not in row]
    if missing:
        raise UserError(f"a row has no column {missing[0]!r}: add it, or set data.reader otherwise")
    rest = {name: value for name, value in row.items() if name != asked}
    own = row.get("ground_truth")
    found = final_answer(row["answer"]) if own is None else own
    return {"prompt": row[asked], **rest, "ground_truth": found}


def from_messages(row: Mapping[str, Any]) -> Row:
    """Convert conversations: the last message of the assistant is the answer, the prompt the rest.

    Answers are `chosen` and `rejected`, else `completion`, from `messages` or `conversations`; None
    where these end with the user. Raises UserError where they are no conversations, or two of
    different prompts.
    """
    pair = "chosen" in row and "rejected" in row
    row = row if pair or "messages" in row else _from_sharegpt(row)
    names = {"chosen": "chosen", "rejected": "rejected"} if pair else {"messages": "completion"}
    found = {ours: _parted(row.get(theirs), theirs) for theirs, ours in names.items()}
    (prompt, _), *others = found.values()
    if any(other != prompt for other, _ in others):
        raise UserError("chosen and rejected of a row differ before their last message: align them")
    rest = {name: value for name, value in row.items() if name not in names}
    return {**rest, "prompt": prompt, **{name: answer for name, (_, answer) in found.items()}}


def _from_sharegpt(row: Mapping[str, Any]) -> Row:
    """The row with `messages` in place of `conversations`, after its column `system`, if any."""
    said = row.get("conversations")
    if not isinstance(said, list) or not all(isinstance(message, dict) for message in said):
        raise UserError("a row has no list of messages in 'messages' or 'conversations': add one")
    rest = {name: value for name, value in row.items() if name not in ("conversations", "system")}
    system = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    return {**rest, "messages": [*system, *map(_said, said)]}


def _said(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message of ShareGPT with role and content; unchanged where it has a role."""
    if "role" in message:
        return message
    if message.get("from") not in _ROLES or "value" not in message:
        raise UserError(
            f"a message of 'conversations' is {dict(message)!r}: give it a value, and from, one of "
            f"{', '.join(_ROLES)}"
        )
    return {"role": _ROLES[message["from"]], "content": message["value"]}


def _parted(value: Any, column: str) -> tuple[list[Any], list[Any] | None]:
    """The messages of a prompt, and the answer of the assistant after them."""
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise UserError(f"the column {column!r} of a row is no list of messages: make it one")
    answers = bool(value) and value[-1].get("role") == "assistant"
    if column != "messages" and not answers:
        raise UserError(f"{column!r} of a row does not end with the assistant's message: add it")
    return (value[:-1], value[-1:]) if answers else (value, None)


def final_answer(answer: Any) -> Any:
    """The text after the last "####", with plain numbers: "so 1,200\\n#### 1,200" -> "1200"."""
    if not isinstance(answer, str):
        return answer
    final = answer.rpartition("####")[2].strip()
    return re.sub(r"[,$]", "", final) if _NUMBER.fullmatch(final) else final


def _mapping(value: Any) -> dict[str, Any]:
    """A nested field, also one that a file holds as JSON text; empty for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json_of(value)
        except ValueError:
            return {}
    return dict(value) if isinstance(value, Mapping) else {}


LAYOUTS: dict[str, Reader | None] = {
    "auto": None,
    "messages": from_messages,
    "prompt": None,
    "question": from_question,
    "verl": from_verl,
}


@dataclass(frozen=True)
class Renaming:
    """New names for columns of the files: theirs -> ours (`data.columns`).

    A row without any of their names stays unchanged, so rows of several layouts can be combined.
    Raises UserError for two columns under one name.

    used: their names that some row has had so far.
    """

    names: Mapping[str, str]
    used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        ours = list(self.names.values())
        if twice := next((name for name in ours if ours.count(name) > 1), ""):
            raise UserError(f"data.columns gives two columns the name {twice!r}: give each its own")

    def of_row(self, row: Row) -> dict[str, str]:
        """The renamings that apply to a row."""
        found = {theirs: ours for theirs, ours in self.names.items() if theirs in row}
        self.used.update(found)
        return found

    def check(self, firsts: Sequence[tuple[str, Row]]) -> None:
        """Raise UserError for a name that no file has, if no file has the new name either.

        firsts: the name and the first row of each file.
        """
        for theirs, ours in self.names.items():
            if not any(theirs in row or ours in row for _, row in firsts):
                where, row = firsts[0]
                raise UserError(
                    f"data.columns renames {theirs!r}, which {where} does not have"
                    f"{did_you_mean(theirs, row)}; its columns are {', '.join(row) or 'none'}"
                )

    def check_used(self) -> None:
        """Raise UserError for a name that no file has had."""
        for theirs, ours in self.names.items():
            if theirs not in self.used:
                raise UserError(
                    f"data.columns renames {theirs!r}, which no file has; they have {ours!r} "
                    f"already: leave {theirs}={ours} out"
                )


def renamed(row: Row, names: Mapping[str, str], where: str) -> Row:
    """The row with renamed columns. Raises UserError where a new name exists already."""
    if not names:
        return row
    found = {names.get(name, name): value for name, value in row.items()}
    if len(found) < len(row):
        theirs, ours = next((a, b) for a, b in names.items() if b in row and b not in names)
        raise UserError(
            f"{where} has both {theirs!r} and {ours!r}, and data.columns makes the first the "
            "second: rename the second, too, or leave the first as it is"
        )
    return found


def pairs(words: list[str], option: str) -> dict[str, str]:
    """Read `theirs=ours` of the command line as a table. Raises UserError."""
    found = {}
    for word in words:
        theirs, given, ours = word.partition("=")
        if not given or not theirs.strip() or not ours.strip():
            raise UserError(f"{option} takes THEIRS=OURS, such as question=prompt, got {word!r}")
        found[theirs.strip()] = ours.strip()
    return found
