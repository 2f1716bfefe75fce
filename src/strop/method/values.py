"""Reads values of the one-line notation: numbers, words, texts, lists and schedules.

Nothing is evaluated.
"""

import ast
import dataclasses
import math
import re
from typing import Any

from strop.catalogue.seams import SLOTS
from strop.method.schedule import SCHEDULES, Schedule
from strop.support.errors import UserError, nearest

WORDS = {"true": True, "false": False, "none": None, "null": None, "inf": math.inf}
DEEPEST = 200  # levels of nesting; Python's own functions recurse over them
# A name of a user's own code; columns in brackets, advantage_B:return_B, are matched to be left.
OWN = re.compile(r"(?<=\w)\[[^\]]*\]|(?<![\w./:-])(?P<name>[\w./-]+:[A-Za-z_]\w*)")

NAMED = re.compile(r":[A-Za-z_]\w*\s*\Z")


class GivenTwice(UserError):
    """An argument or a key stands twice in a line that is notation otherwise."""


def parse(text: str) -> ast.expr:
    """Parse the text as a Python expression. Raises UserError."""
    try:
        node = ast.parse(_prepared(text), mode="eval").body
    except SyntaxError as error:
        where = f" at character {error.offset}" if error.offset else ""
        raise UserError(f"cannot read {text!r}{where}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"cannot read {text[:80]!r}: {error}") from error
    level: list[ast.AST] = [node]
    depth = 0
    while level:
        for each in level:
            _check_once(each, text)
        depth, level = depth + 1, [each for one in level for each in ast.iter_child_nodes(one)]
    if depth > DEEPEST:
        raise UserError(f"cannot read {text[:80]!r}: it is nested too deeply")
    return node


def _prepared(text: str) -> str:
    """The text on one line, with names of a user's own code in quotes where it has none."""
    if not {"'", '"', "{"} & set(text):  # my_parts.py:Part(x=1) -> "my_parts.py:Part"(x=1)
        text = OWN.sub(lambda found: f'"{found[0]}"' if found["name"] else found[0], text)
    return text.strip().replace("\n", " ")


def _check_once(node: ast.AST, text: str) -> None:
    """Raise UserError where an argument, a key or a renamed column is given twice."""
    if isinstance(node, ast.Call):
        names = [each.arg or "**" for each in node.keywords]
    elif isinstance(node, ast.Dict):
        names = [ast.unparse(key) for key in node.keys if key is not None]
    elif isinstance(node, ast.Tuple):
        slices = (each for each in node.elts if isinstance(each, ast.Slice))
        names = [ast.unparse(each.lower) for each in slices if each.lower is not None]
    else:
        return
    if twice := [name for name in names if names.count(name) > 1]:
        raise GivenTwice(f"{text!r}: {twice[0]} is given twice; give it once")


def own(text: str) -> list[str]:
    """The names FILE.py:NAME of a user's own code in a line of notation. Raises UserError.

    The line is parsed as notation, so a name with an escaped colon is found too. The value of an
    argument counts where it is a slot's part or ends as such a name does.
    """
    tree = parse(text)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    values = {
        id(inside)
        for call in calls
        for each in call.keywords
        if each.arg not in SLOTS
        for inside in ast.walk(each.value)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if NAMED.search(node.value) or (":" in node.value and id(node) not in values)
    ]


def _numbers(items: tuple[Any, ...]) -> list[Any]:
    """The items, with nested tuples flattened."""
    inside = [_numbers(item) if isinstance(item, tuple) else [item] for item in items]
    return [item for group in inside for item in group]


def _schedule(node: ast.Call, name: str, kind: type[Schedule], text: str) -> Schedule:
    """A schedule from its call. Raises UserError for arguments of the wrong number or kind."""
    positional = [value_of(each, text) for each in node.args]
    words = {each.arg or "**": value_of(each.value, text) for each in node.keywords}
    names = [each.name for each in dataclasses.fields(kind)]
    taken = names[: len(positional)]
    for number in _numbers((*positional, *words.values())):
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise UserError(f"{text!r}: {name} takes numbers, got {number!r}")
    if len(positional) > len(names) or not words.keys() <= {*names} - {*taken}:
        given = len(positional) + len(words)
        raise UserError(f"{text!r}: {name} takes {', '.join(names)}, each once; got {given} values")
    return kind(**dict(zip(taken, positional, strict=True)), **words)


def value_of(node: ast.expr, text: str) -> Any:
    """A number, word, text, list, table or schedule; a bare word or path is text. Raises UserError
    for anything else.
    """
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        schedule = SCHEDULES.get(node.func.id)
        if schedule is None:
            near = nearest(node.func.id, SCHEDULES)
            raise UserError(f"{text!r}: no schedule {node.func.id}{near or '; there are '}"
                            f"{'' if near else ', '.join(SCHEDULES)}")  # fmt: skip
        return _schedule(node, node.func.id, schedule, text)
    if isinstance(node, ast.Name):
        return WORDS.get(node.id.lower(), node.id)
    if isinstance(node, ast.Attribute | ast.BinOp):  # data/rows.jsonl, token-mean
        return ast.get_source_segment(_prepared(text), node)
    if ast.unparse(node) == "-inf":
        return -math.inf
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(value_of(item, text) for item in node.elts)
    if isinstance(node, ast.Dict):
        return _table(node, text)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{text!r}: {ast.unparse(node)} is not a number, text or schedule"
        ) from error


def _table(node: ast.expr, text: str) -> Any:
    """The value of a text in curly brackets, `{size: 3, fast: true}`, as TOML holds it; a whole
    number before a colon is text.
    """
    if isinstance(node, ast.Dict):
        keys = [_table(key, text) for key in node.keys if key is not None]
        keys = [str(key) if type(key) is int else key for key in keys]  # as in TOML
        if not all(isinstance(key, str) for key in keys) or len(keys) < len(node.keys):
            raise UserError(f"{text!r}: write names and values in curly brackets: {{name: value}}")
        return dict(zip(keys, (_table(item, text) for item in node.values), strict=True))
    if isinstance(node, ast.List):
        return [_table(item, text) for item in node.elts]
    return value_of(node, text)
