"""Messages name only options that exist, in full: every text in the sources is searched."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from options import known_options

from strop.batch.columns import KNOWN
from strop.catalogue.seams import KINDS
from strop.cli.main import app
from strop.support.about import SOURCE

COMMANDS = typer.main.get_command(app).commands
HEADS = sorted({name.partition(".")[0] for name in known_options() if "." in name})
WHOLE = re.compile(rf"(?<![\w./-])(?:{'|'.join(HEADS)})(?:\.[a-z_]+)+(?![\w/(])")
DASHED = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
BARE = re.compile(r"(?<![\w./-{}`'\"])[a-z]+_[a-z_]+(?![\w/(.=:])")
FILES = (".py", ".safetensors", ".json", ".jsonl", ".toml", ".md", ".html", ".pt")
# The command that a file of cli/ belongs to; messages of other files are for `strop train`.
SPEAKS_FOR = {
    "evaluate": "eval", "inference": "eval", "trust": "eval",
    "listing": "recipes", "shown": "recipes", "comparison": "compare",
    "planning": "plan", "parts": "train", "diagnosis": "doctor", "auditing": "audit",
    "inspection": "inspect", "main": "eval",
}  # fmt: skip
SOURCES = sorted(SOURCE.rglob("*.py"))


def texts(tree: ast.AST) -> Iterator[str]:
    """Every text of a file that is no docstring; the pieces of an f-string are joined."""
    inside = set()  # a walk comes to a node before it comes to what is in it
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            inside.add(body[0].value)
        if isinstance(node, ast.JoinedStr):
            pieces = [v.value if isinstance(v, ast.Constant) else "{}" for v in node.values]
            inside |= set(node.values)
            yield "".join(map(str, pieces))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield node.value


def raised(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            yield from texts(node.exc)


def options_of(command: Any) -> set[str]:
    return {
        word for parameter in command.params for word in parameter.opts + parameter.secondary_opts
    }


def speakers(path: Path, text: str, at: int) -> set[str]:
    """The options of the command that a text names before that place, or that the file is of."""
    if DASHED.fullmatch(text.strip()):  # a piece of some command
        return {option for command in COMMANDS.values() for option in options_of(command)}
    named = re.findall(r"strop ([a-z]+)\b", text[:at])
    if named and named[-1] in COMMANDS:
        return options_of(COMMANDS[named[-1]])
    inside = path.relative_to(SOURCE).parts
    name = path.stem if inside[0] in ("cli", "api") else inside[0]
    if inside[0] in ("parts", "recipes"):  # which are of a run, not of the command that lists them
        name = "train"
    if path.stem in COMMANDS and inside != ("comparison", "plan.py"):  # which is not the command's
        name = path.stem
    return options_of(COMMANDS.get(SPEAKS_FOR.get(name, name), COMMANDS["train"]))


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.AST]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}


@pytest.fixture(scope="module")
def sentences(trees) -> list[tuple[Path, str]]:
    """Every text of several words, with its file."""
    return [(path, text) for path, tree in trees.items() for text in texts(tree) if " " in text]


def test_every_option_that_a_text_names_whole_exists(sentences):
    known, found = known_options(), set()
    for path, text in sentences:
        for name in WHOLE.findall(text):
            if not name.endswith(FILES):
                assert name in known, f"{path}: {name} in {text!r}"
                found.add(name)
    assert {"rollout.max_tokens", "reward.timeout_seconds", "training.lr"} <= found
    assert len(found) > 30


def test_every_option_with_dashes_is_one_of_its_command(sentences):
    found = set()
    for path, text in sentences:
        for option in DASHED.finditer(text):
            if text[: option.start()].endswith("vLLM with "):
                continue  # an option of that program
            assert option.group() in speakers(path, text, option.start()), f"{path}: {text!r}"
            found.add(option.group())
    assert {"--reward", "--data", "--resume", "--samples", "--toml"} <= found


def test_an_option_of_the_run_is_named_with_its_section(trees):
    """In what parts, trainer and commands refuse; other files speak of arguments too."""
    last = {name.rpartition(".")[2] for name in known_options()} - KNOWN.keys()
    assert BARE.findall("raise max_rounds, or a.max_rounds") == ["max_rounds"]
    for path, tree in trees.items():
        folder = path.parent.relative_to(SOURCE).as_posix()
        if folder not in KINDS and not folder.startswith(("training", "cli")):
            continue
        for text in raised(tree):
            bare = [name for name in BARE.findall(text) if name in last]
            assert not bare, f"{path}: name {bare} as section.option in {text!r}"
