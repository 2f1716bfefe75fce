"""Every recipe composes, is documented, and differs from the others; found, never listed."""

import collections
import functools
import inspect
import itertools
import re

import pytest
from changed import UNLIKE, candidates, texts
from every import every

from strop.api.options import settings_of
from strop.catalogue import catalogue
from strop.catalogue.families import FAMILIES
from strop.method import notation, reading, writing
from strop.method.algorithm import Method
from strop.method.check import check
from strop.parts.plan.split_into_minibatches import SplitIntoMinibatches
from strop.support.errors import UserError
from strop.training.settings import config

ENTRIES = catalogue.recipes()
every_recipe = every("entry", ENTRIES)
NAMES = {entry.name for entry in ENTRIES}
QUOTES = "\"'"
# Parameters that take any text; all others take one of several words.
FREE = {
    "adapter", "call", "classifier", "column", "marker", "needed", "node", "opening", "prefix",
    "preference", "reference", "rewrite", "scenario", "separator", "skill", "store", "words",
}  # fmt: skip
# NAME=VALUE in a sentence: a text in quotes, a call or a tuple of numbers, a word.
WORD = re.compile(r"""([\w.]+)=('[^']*'|"[^"]*"|\w*\([^a-z]*\)|[\w.]*\w)""")


def test_there_are_recipes_and_no_part_has_their_names():
    assert len(ENTRIES) >= 10
    assert len(NAMES) == len(ENTRIES)
    assert not NAMES & {entry.name for entry in catalogue.parts()}


@every_recipe
def test_composes_with_defaults_and_is_checked(entry):
    algorithm = entry.load()()
    assert isinstance(algorithm, Method)
    check(algorithm)
    assert algorithm == notation.recipe(entry.name)
    assert hash(algorithm) == hash(notation.recipe(f"{entry.name}()"))
    for each in algorithm.algorithms:
        for stage, parts in writing.describe(each).items():
            content = getattr(each, stage)
            found = len(content) if isinstance(content, tuple) else content is not None
            assert len(parts) == found


@every_recipe
def test_docstring_is_a_citation_with_differences(entry):
    assert re.search(r"arXiv \d{4}\.\d{5}", entry.doc)
    assert re.search(r"Status: (exact|partial|abstract)\.", entry.doc)
    parent = re.search(r"Parent: (\w+)", entry.doc).group(1)
    assert parent == "none" or parent in NAMES
    assert entry.line("Family") in {family.name for family in FAMILIES}
    differences = ("Differs from the parent", "Differs from the paper")
    for line in ("In short", "Choose it when", "Equation", *differences, "Try", "Code"):
        assert entry.line(line), f"{entry.name} has no line {line}:"
    if not re.search(r"Status: exact\.", entry.doc):
        assert not re.match(r"no\b", entry.line("Differs from the paper")), "then it is exact"
    assert len(entry.doc.splitlines()) <= 25


@every_recipe
def test_a_method_for_old_answers_says_how_old_they_are_by_default(entry):
    """The age of answers is the run's, 0 by default: what a paper has is a difference from it."""
    run = config.make({})
    assert not run.engine.staleness
    assert not run.training.max_staleness
    asked = f"{entry.line('Differs once')} {entry.line('Try')}"
    if entry.line("Family") == "staleness" or "staleness" in asked:
        said = entry.line("Differs from the paper")
        assert re.search(r"`?(engine\.staleness|training\.max_staleness)|No limit on age", said)


@every_recipe
def test_the_updates_of_a_step_are_those_that_it_says(entry):
    """More than one are named beside the parent, or the parent makes them too."""
    count, parents = (
        notation.recipe(name).algorithms[0].plan.part if name != "none" else SplitIntoMinibatches()
        for name in (entry.name, entry.line("Parent"))
    )
    if isinstance(count, SplitIntoMinibatches):
        said = entry.line("Differs from the parent")
        found = re.search(r"(two|four|4|eight) (?:updates(?: a step|;)|passes)", said)
        made = count.num_epochs * count.num_minibatches
        if found is not None:
            assert {"two": 2, "four": 4, "4": 4, "eight": 8}[found[1]] == made
        elif made > 1:
            assert made == parents.num_epochs * parents.num_minibatches, "name the updates"


@functools.cache
def said_by(label):
    """The recipes that say each of what stands on such a line."""
    found = collections.defaultdict(list)
    for entry in ENTRIES:
        found[entry.line(label).lower()].append(entry.name)
    return found


@every_recipe
def test_when_to_choose_it_is_said_of_this_recipe_alone(entry):
    said = " ".join(entry.line("Choose it when").split())
    assert len(said.split()) >= 8, f"{entry.name}: say the situation"
    assert len(said) <= 180, f"{entry.name}: one sentence"
    title = entry.summary.rstrip(".").lower()
    assert entry.summary == " ".join(entry.doc.partition("\n\n")[0].split())
    assert said.lower() != title
    for label in ("Choose it when", "In short"):
        with_it = said_by(label)[entry.line(label).lower()]
        assert with_it == [entry.name], label
    # `strop recipes` has 80 columns; 47 are the longest name's, the paper's and the spaces.
    assert len(entry.line("In short")) <= 33


@every_recipe
def test_parameters_are_annotated_and_have_defaults(entry):
    for field in entry.fields:
        assert field.annotation
        assert field.default


@every_recipe
def test_differs_from_its_parent(entry):
    parent = re.search(r"Parent: (\w+)", entry.doc).group(1)
    if parent != "none":
        assert entry.load()() != notation.recipe(parent)


def test_no_two_recipes_are_the_same():
    made = {entry.name: entry.load()() for entry in ENTRIES}
    for one, other in itertools.combinations(made, 2):
        assert made[one] != made[other], f"{one} and {other}"


def defaults(function):
    return {p.name: p.default for p in inspect.signature(function).parameters.values()}


def legal(function, options):
    """The algorithm with these options, or None where they are not legal."""
    try:
        return function(**options)
    except UserError:
        return None


def others(function, options, name):
    """Other values of an option, the likeliest to be legal first."""
    value = options[name]
    if isinstance(value, str):
        return texts(lambda text: function(**{**options, name: text}), value)
    return candidates(value)


def words(function, options):
    """Changes of options of text that are legal, alone and in pairs."""
    single = [
        {name: word}
        for name, value in options.items()
        if isinstance(value, str)
        for word in others(function, options, name)
        if legal(function, {**options, name: word}) is not None
    ]
    pairs = itertools.combinations(single, 2)
    return [*single, *({**one, **other} for one, other in pairs if one.keys() != other.keys())]


@every_recipe
def test_every_parameter_changes_the_algorithm(entry):
    """Alone, or together with a switch, or one or two words, that turn its part on."""
    function = entry.load()
    options = defaults(function)
    switches = [{}, *({k: not v} for k, v in options.items() if isinstance(v, bool))]

    def reached(name, switches):
        for switch in switches:
            with_switch = legal(function, {**options, **switch})
            if name in switch or with_switch is None:
                continue
            for other in others(function, {**options, **switch}, name):
                changed = legal(function, {**options, **switch, name: other})
                if changed is not None and changed != with_switch:
                    return True
        return False

    for name in options:
        found = reached(name, switches) or reached(name, words(function, options))
        assert found, f"{entry.name}({name}=...) changes nothing"


@every_recipe
def test_an_unknown_word_is_refused_with_those_that_there_are(entry):
    function = entry.load()
    for name, value in defaults(function).items():
        if isinstance(value, str) and name not in FREE:
            with pytest.raises(UserError) as caught:
                function(**{name: UNLIKE})
            assert repr(UNLIKE) in str(caught.value), name
            assert value in str(caught.value), name


@every_recipe
def test_words_of_the_line_try_are_read(entry):
    """Parameters are given in the recipe's brackets, options beside it, as a shell hands them."""
    parameters = inspect.signature(entry.load()).parameters
    for name, value in WORD.findall(entry.line("Try")):
        if name in parameters:
            check(notation.recipe(f"{entry.name}({name}={value})"))
        else:
            settings_of([entry.name, f"{name}={value.strip(QUOTES)}"], {}).build()


@every_recipe
def test_unknown_parameters_and_overrides_are_named(entry):
    with pytest.raises(UserError, match=f"recipe {entry.name} has no parameter num_rollout, did"):
        notation.recipe(f"{entry.name}(num_rollout=3)")
    algorithm = reading.override(entry.load()(), "sampling.num_prompts", 7)
    paths = (each.paths() for each in algorithm.algorithms)
    assert {each["sampling.draw_in_shuffled_order.num_prompts"] for each in paths} == {7}
    check(algorithm)
