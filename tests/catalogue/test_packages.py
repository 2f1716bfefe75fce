"""Third-party parts and recipes: in a file, and from an installed package's entry points."""

import json

import pytest
from commands import ended

from strop.catalogue import catalogue
from strop.method import notation, reading
from strop.support.errors import UserError

PARTS = """
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.method.part import Result


@dataclass(frozen=True)
class HalveAdvantage:
    \"""Every answer is pushed half as far.

        advantage_i = share * advantage_i

    Reads: advantage_B [B] float.   Writes: advantage_B [B] float.
    Source: none; an example.
    Differs from the source: no.
    Nearest part: none.
    Edges: none.
    \"""

    kind: ClassVar[str] = "advantage/scale"
    # What is left of it. Default: ours.
    share: float = 0.5

    def __call__(self, advantage_B: Tensor) -> Result:
        return Result(self.share * advantage_B, metrics={"halved/share": self.share})


@dataclass(frozen=True)
class NoDefault:
    power: float

    def __call__(self, advantage_B: Tensor) -> Tensor:
        return advantage_B


class NoPart:
    pass


@dataclass
class Unfrozen:
    def __call__(self, advantage_B):
        return advantage_B
"""
RECIPES = """
import dataclasses
import os

from their_parts import HalveAdvantage

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, clip_high=0.3)
def grpo_halved(*, share: float = 0.25, **parent) -> Algorithm:
    \"""A title.

    arXiv 2402.03300. Code: none. Parent: grpo. Status: exact.
    In short: half as far. Family: baselines.
    Choose it when: you want to see an example of a package that brings a method of its own.

    Equation: A / 2.
    Differs from the parent: halved.
    Differs from the paper: no.
    Try: share.
    \"""
    algorithm = grpo(**parent)
    *before, spread = algorithm.advantage
    return dataclasses.replace(
        algorithm, advantage=(*before, Use(HalveAdvantage(share)), spread)
    )


def grpo_plain(clip: float = 0.3) -> Algorithm:
    \"""A title.\"""
    return grpo(clip_high=clip)


def nothing() -> Algorithm:
    return None


def undeclared(command="exit 3"):
    raise SystemExit(command)
"""
POINTS = """
[strop.parts]
halve_advantage = their_parts:HalveAdvantage

[strop.recipes]
grpo_halved = their_recipes:grpo_halved
"""


@pytest.fixture
def place(tmp_path):
    """A folder for Python's path that holds an installed package with entry points."""
    (tmp_path / "their_parts.py").write_text(PARTS)
    (tmp_path / "their_recipes.py").write_text(RECIPES)
    info = tmp_path / "their_methods-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-methods\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    return tmp_path


def strop(place, *words):
    """The command in a process that has the package on its path."""
    return ended(words, place)


def test_a_package_is_listed_shown_and_trained(place):
    listed = json.loads(strop(place, "recipes", "--json").out)
    assert "grpo_halved" in {each["name"] for each in listed}
    page = json.loads(strop(place, "recipes", "grpo_halved", "--json").out)
    assert '"their_parts:HalveAdvantage"(share=0.25)' in page["stages"]["advantage"]
    known = {each["name"]: each for each in page["parameters"]}
    assert known["share"]["default"] == "0.25"
    assert known["clip_high"]["default"] == "0.3"
    part = json.loads(strop(place, "parts", "halve_advantage", "--json").out)
    assert part["folder"] == "advantage/scale"
    assert page["metrics"] == part["metrics"] == ["halved/share"]
    assert part["equation"] == "advantage_i = share * advantage_i"
    assert "halve_advantage" in strop(place, "parts", "advantage/scale").out
    result = strop(
        place, "train", "grpo_halved(share=0.1)", "training.steps=1", "evaluation.every=0",
        "sampling.num_prompts=2", "sampling.num_rollouts=4", "--out", "run",
    )  # fmt: skip
    assert result.code == 0, result.err
    text = (place / "run" / "config.toml").read_text()
    assert '"their_parts:HalveAdvantage"(share=0.1)' in text.replace("\\", "")
    again = strop(place, "train", "--resume", "run", "training.steps=2")
    assert again.code == 0, again.err


def test_a_broken_package_costs_itself_alone(place):
    (place / "leaving").mkdir()
    (place / "leaving" / "__init__.py").write_text("import sys\nsys.exit('no licence')\n")
    (place / "compiled.py").write_bytes(b"\x7fELF\xff\0")
    (place / "latin.py").write_bytes("def of() -> None: 'é'".encode("latin-1"))
    (place / "their_methods-1.0.dist-info" / "entry_points.txt").write_text(
        "[strop.recipes]\ngrpo = their_recipes:grpo_halved\nmine = their_recipes:grpo_halved\n"
        "gone = no_package_so_named:any\nleft = leaving.recipes:any\nbytes = compiled:any\n"
        "accents = latin:of\nabsent = their_recipes:another\n"
    )
    result = strop(place, "recipes", "--json")
    assert result.code == 0, result.err
    listed = {each["name"] for each in json.loads(result.out)}
    assert {"grpo", "mine"} <= listed
    assert not {"gone", "left", "bytes", "accents", "absent"} & listed
    notes = result.err.splitlines()
    assert len(notes) == 6
    assert all(note.startswith("note: recipe ") for note in notes)
    assert sum("of their-methods (entry point" in note for note in notes) == 5
    assert "SystemExit: no licence" in result.err
    assert "strop.recipes.grpo has one of this name" in result.err
    asked = strop(place, "recipes", "gone")
    assert asked.code == 2
    assert "recipe gone of their-methods (entry point no_package_so_named:any" in asked.err
    assert strop(place, "recipes", "grpo").code == 0


def test_a_part_of_a_file_has_a_page_without_being_imported(place):
    (place / "broken_import.py").write_text("import nothing_of_this_name\n" + PARTS)
    entry = catalogue.find("part", f"{place}/broken_import.py:HalveAdvantage")
    assert entry.folder == "advantage/scale"
    assert entry.fields[0].comment == "What is left of it. Default: ours."
    assert entry.reads == ("advantage_B",)
    with pytest.raises(UserError, match="has no class HalfAdvantage, did you mean HalveAdvantage"):
        catalogue.find("part", f"{place}/broken_import.py:HalfAdvantage")
    with pytest.raises(UserError, match=r"no file .*none.py"):
        catalogue.find("part", f"{place}/none.py:Any")
    with pytest.raises(UserError, match="cannot import no_package_so_named"):
        catalogue.find("recipe", "no_package_so_named:any")


def test_only_recipes_and_parts_are_called(place, monkeypatch):
    monkeypatch.syspath_prepend(str(place))
    with pytest.raises(UserError, match="os:system is no recipe: declare the function to return"):
        notation.recipe('"os:system"(command="exit 3")')
    with pytest.raises(UserError, match="is no recipe"):
        notation.recipe(f'"{place}/their_recipes.py:undeclared"(command="no")')
    with pytest.raises(UserError, match="NoPart is no part: a part is a frozen dataclass"):
        reading.chain(f'"{place}/their_parts.py:NoPart"')
    with pytest.raises(UserError, match="Unfrozen is no part: a part is a frozen dataclass"):
        reading.chain(f'"{place}/their_parts.py:Unfrozen"')
    with pytest.raises(UserError, match="Popen is no part"):
        reading.chain('"subprocess:Popen"(args="true")')
    with pytest.raises(UserError, match="NoDefault: its field power has no default"):
        reading.chain(f'"{place}/their_parts.py:NoDefault"')
    with pytest.raises(UserError, match="nothing returned NoneType, it must return an Algorithm"):
        notation.recipe("their_recipes:nothing")


def test_a_recipe_that_says_little_of_itself_has_a_short_page(place):
    shown = strop(place, "recipes", "their_recipes:grpo_plain").out
    assert "clip  float  0.3" in shown
    assert "arXiv" not in shown
    assert "Equation" not in shown


def test_a_part_that_states_no_kind_is_left_out_with_the_reason(place):
    (place / "kinds.py").write_text(
        PARTS.replace('kind: ClassVar[str] = "advantage/scale"', "").replace("power: float", "")
        + PARTS.replace("advantage/scale", "advantage/scales").replace("HalveAdv", "Misspelled")
    )
    (place / "their_methods-1.0.dist-info" / "entry_points.txt").write_text(
        "[strop.parts]\nno_kind = kinds:HalveAdvantage\nmisspelled = kinds:Misspelledantage\n"
        "called_otherwise = their_parts:HalveAdvantage\n"
    )
    result = strop(place, "parts", "--json")
    listed = {each["name"] for each in json.loads(result.out)}
    assert listed >= {"called_otherwise"}
    assert not {"no_kind", "misspelled"} & listed
    assert "part no_kind of their-methods (entry point kinds:HalveAdvantage" in result.err
    assert "its class states no kind: give it `kind: ClassVar[str] = " in result.err
    assert "states the kind 'advantage/scales', which does not exist: give it" in result.err
    page = json.loads(strop(place, "recipes", "their_recipes:grpo_halved", "--json").out)
    assert page["metrics"] == ["halved/share"]


def test_a_package_of_another_version_is_noted_when_a_run_goes_on(place):
    ended = strop(
        place, "train", "grpo_halved", "training.steps=1", "evaluation.every=0",
        "sampling.num_prompts=2", "sampling.num_rollouts=4", "--out", "run",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    (start,) = json.loads((place / "run" / "environment.json").read_text())
    assert start["packages"] == "their-methods 1.0"
    about = place / "their_methods-1.0.dist-info" / "METADATA"
    about.write_text(about.read_text().replace("Version: 1.0", "Version: 2.0"))
    again = strop(place, "train", "--resume", "run", "training.steps=2")
    assert again.code == 0, again.err
    said = again.out + again.err
    assert "had their-methods 1.0 when it last began, and continues with their-methods 2.0" in said


def test_a_package_that_cannot_be_imported_costs_itself_alone_where_all_are_loaded(
    place, monkeypatch, capsys
):
    monkeypatch.syspath_prepend(str(place))
    (place / "unfit.py").write_text("import nothing_of_this_name\n" + RECIPES)
    entries = [
        catalogue.find("recipe", "unfit:grpo_plain"),
        catalogue.find("recipe", "their_recipes:nothing"),
        catalogue.find("recipe", "their_recipes:grpo_plain"),
        catalogue.find("recipe", "grpo"),
    ]
    names = {entry: f"{entry.module}:{entry.attribute}" for entry in entries}
    made = catalogue.of_each(entries, lambda entry: notation.build_recipe(names[entry], {}))
    assert [entry.name for entry in made] == ["grpo_plain", "grpo"]
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("note: recipe grpo_plain of unfit is left out: unfit cannot be loaded")
    assert "nothing of their_recipes is left out: recipe their_recipes:nothing returned" in second

    def fails(entry):
        raise UserError(f"{entry.name} fails")

    with pytest.raises(UserError, match="grpo fails"):  # strop's own say so
        catalogue.of_each(entries[3:], fails)
