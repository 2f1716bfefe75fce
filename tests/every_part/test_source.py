"""The rules for every part's source file; parts are found, never listed."""

import ast
import difflib
import functools
import inspect
import itertools
import re

import pytest
from changed import changed_values, texts
from every import every
from metrics_page import undocumented

from strop.batch.batch import SIZES
from strop.batch.columns import is_current
from strop.catalogue import catalogue
from strop.catalogue.seams import SPECIAL
from strop.method import part as parts
from strop.method import reading, writing
from strop.method.charts import charts_of, panel_of
from strop.method.part import Use
from strop.method.schedule import Linear
from strop.support.about import PARTS
from strop.support.errors import UserError
from strop.support.loading import camel

ENTRIES = catalogue.parts()
NAMES = [entry.name for entry in ENTRIES]
every_part = every("entry", ENTRIES)
LINES = ("Reads", "Writes", "Source", "Differs from the source", "Nearest part", "Edges")
MOST_LINES = {"rollout": 200}  # strategies
ORIGINS = r"Default: (paper|released code|ours)\b"
# Attributes that a strategy needs from an engine; the columns that a head provides for a loss.
ENGINE = ("strop.engines.asynchronous", "strop.engines.base", "strop.engines.rules")
TRACES = ("strop.serving.protocol", "strop.traces.joining", "strop.traces.records")
BESIDE = {"rollout": (*ENGINE, *TRACES), "loss": ("strop.head.chunk",)}
NO_LOOPS = ("advantage", "selection", "loss")


@functools.cache
def source(entry):
    return (PARTS / entry.folder / f"{entry.name}.py").read_text(encoding="utf-8")


@functools.cache
def nodes(entry):
    """All nodes of its source."""
    return [*ast.walk(ast.parse(source(entry)))]


@functools.cache
def recipe_names():
    return {recipe.name for recipe in catalogue.recipes()}


def test_there_are_parts_and_their_names_are_distinct():
    assert len(NAMES) > 20
    assert len(set(NAMES)) == len(NAMES)


def frozen_hashable_and_equal_by_value(entry):
    kind = entry.load()
    part = kind()
    assert part == kind()
    assert hash(part) == hash(kind())
    with pytest.raises(AttributeError):
        part.anything = 1
    assert parts.name_of(part) == entry.name
    assert kind.__name__ == camel(entry.name)
    assert parts.kind_of(part) == entry.folder


def fields_survive_the_notation(entry):
    part = entry.load()()
    assert reading.chain(writing.part_text(part)) == (Use(part),)
    for name, value in changed_values(parts.fields_of(part)).items():
        changed = parts.replace(part, **{name: value})
        assert changed != part
        assert reading.chain(writing.part_text(changed)) == (Use(changed),)


def every_number_may_be_a_schedule(entry):
    """What is asked of a part before its first step needs no number of a step."""
    fields = parts.fields_of(entry.load()())
    whole = {"num_epochs", "num_minibatches"}
    modes = [{}]
    for name, value in fields.items():
        if isinstance(value, str):
            modes += [{name: text} for text in texts(functools.partial(_with, entry, name), value)]
    numbers = {k: Linear(v, v) for k, v in fields.items() if type(v) in (int, float)}
    for mode, (name, curve) in itertools.product(modes, numbers.items()):
        try:
            part = entry.load()(**{**mode, name: curve})
        except UserError:
            continue
        use = Use(part)
        assert reading.chain(writing.part_text(part)) == (use,)
        described = (parts.reads(use), parts.any_of(use), parts.facts(use), parts.writes(use))
        assert all(isinstance(each, tuple | frozenset) for each in described)
        stated = [getattr(part, other, None) for other in ("unread", "unlogged", "num_updates")]
        assert name not in whole or stated[-1] is None


def _with(entry, name, value):
    return entry.load()(**{name: value})


def docstring_says_everything(entry):
    assert entry.summary.endswith(".")
    assert len(entry.doc.splitlines()) <= 25
    for line in LINES:
        assert entry.line(line), f"{entry.name} has no line {line}:"
    places = [re.search(rf"(?<!\w){line}:", entry.doc).start() for line in LINES]
    assert places == sorted(places), f"the order is {', '.join(LINES)}"
    for arxiv in re.findall(r"arXiv\s+([^\s,;)]+)", entry.doc):
        assert re.fullmatch(r"\d{4}\.\d{4,5}\.?", arxiv), arxiv
    text = entry.line("Source")
    assert re.match(r"arXiv \d{4}\.\d{5}|code only: [\w-]+/[\w-]+|none", text), text


def docstring_names_what_is_read_and_an_existing_nearest_part(entry):
    for name in entry.reads:
        assert name in SPECIAL or name in entry.doc, f"{entry.name} does not document {name}"
    nearest = re.match(r"\w+", entry.line("Nearest part")).group()
    assert nearest == "none" or nearest in NAMES


def no_recipe_is_named(entry):
    """A recipe bears its paper's name; a part says its effect and knows no recipe."""
    recipes = recipe_names()
    for node in nodes(entry):
        named = getattr(node, "id", None) or getattr(node, "name", None) or getattr(node, "arg", "")
        assert named not in recipes, f"line {node.lineno} names {named}"
        if isinstance(node, ast.Constant):
            assert node.value not in recipes, f"line {node.lineno} names {node.value}"


def fields_are_few_and_say_where_their_default_comes_from(entry):
    own = inspect.get_annotations(entry.load())
    assert len([field for field in entry.fields if field.name in own]) <= 5
    for field in entry.fields:
        assert field.default, f"{entry.name}.{field.name} has no default"
        assert re.search(ORIGINS, field.comment), f"{entry.name}.{field.name}: {field.comment!r}"


def sizes(entry):
    text = source(entry)
    top = entry.folder.split("/")[0]
    assert len(text.splitlines()) <= MOST_LINES.get(top, 150)


def grouped_statistics_stay_in_segments(entry):
    if entry.folder.split("/")[0] not in NO_LOOPS:
        return
    for node in nodes(entry):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            inside = isinstance(owner, ast.Name) and owner.id == "segments"
            assert inside or node.func.attr not in ("mean", "std", "median", "var", "tolist")
        assert not isinstance(node, ast.For | ast.While), f"line {node.lineno} loops"


def sizes_of_tables_are_ints(entry):
    for parameter in parts.parameters(entry.load()()):
        assert parameter.name not in SIZES or parameter.annotation in (int, "int"), parameter


def test_no_part_measures_a_key():
    """Its largest value is a wait for the device; `segments.count_of` is where one is due."""
    for folder in sorted({entry.folder for entry in ENTRIES}):
        for path in sorted((PARTS / folder).glob("*.py")):
            found = re.search(r"max\(\)(\)|\.item\(\)) \+ \d", path.read_text(encoding="utf-8"))
            assert not found, path


def every_column_that_it_reads_or_writes_is_declared(entry):
    use, known = Use(entry.load()()), catalogue.columns()
    for column in (*(read.column for read in parts.reads(use)), *parts.writes(use)):
        named = column in known or is_current(column)  # a current one may have a number
        assert named, f"declare {column} in the part that brings it"


def what_it_shows_is_documented(entry):
    placed = [("", Use(entry.load()()))]
    curves = [curve for chart in charts_of(placed) for curve in chart.curves]
    keys = {key for curve in curves for key in (curve.key, curve.low, curve.high) if key}
    assert not undocumented({*keys, *panel_of(placed)})


def imports_only_batch_segments_and_part(entry):
    """A folder of parts imports tables, what a part is and its own folder, little beside it."""
    top = entry.folder.split("/")[0]
    own = [f"strop.parts.{top}", *BESIDE.get(top, ())]
    names = ("part", "charts", "services", "schedule")
    below = ("strop.batch", "strop.support", *(f"strop.method.{name}" for name in names))
    for node in nodes(entry):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("strop."):
            assert node.module.startswith((*below, *own)), node.module


def lines_of(entry):
    return [line.strip() for line in source(entry).splitlines() if line.strip()]


def test_no_two_files_share_most_of_their_lines():
    lines = {entry.name: lines_of(entry) for entry in ENTRIES}
    matcher = difflib.SequenceMatcher(autojunk=False)
    for number, other in enumerate(NAMES):
        matcher.set_seq2(lines[other])  # which is the dear one
        for one in NAMES[:number]:
            matcher.set_seq1(lines[one])
            if matcher.real_quick_ratio() > 0.7 and matcher.quick_ratio() > 0.7:
                assert matcher.ratio() <= 0.7, f"{one} and {other}"


@every_part
def test_its_class(entry):
    frozen_hashable_and_equal_by_value(entry)
    fields_survive_the_notation(entry)
    every_number_may_be_a_schedule(entry)
    sizes_of_tables_are_ints(entry)
    every_column_that_it_reads_or_writes_is_declared(entry)
    what_it_shows_is_documented(entry)


@every_part
def test_its_docstring_and_comments(entry):
    docstring_says_everything(entry)
    docstring_names_what_is_read_and_an_existing_nearest_part(entry)
    fields_are_few_and_say_where_their_default_comes_from(entry)


@every_part
def test_its_file(entry):
    no_recipe_is_named(entry)
    sizes(entry)
    grouped_statistics_stay_in_segments(entry)
    imports_only_batch_segments_and_part(entry)
