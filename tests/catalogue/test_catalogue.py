"""The catalogue of parts and recipes, read from source files alone."""

import dataclasses
import inspect
import re
import sys

import pytest

from strop.catalogue import catalogue
from strop.catalogue.entries import Regime
from strop.method import part as parts
from strop.method import schedule
from strop.support.errors import UserError, nearest
from strop.support.loading import camel


def test_parts_match_what_importing_shows():
    for entry in catalogue.parts():
        kind = entry.load()
        assert parts.kind_of(kind()) == entry.folder
        assert [f.name for f in dataclasses.fields(kind)] == [field.name for field in entry.fields]
        assert [p.name for p in parts.parameters(kind())] == list(entry.reads)
        assert parts.writes(parts.Use(kind())) == entry.writes
        assert entry.summary == kind.__doc__.strip().splitlines()[0]


def test_recipes_match_what_importing_shows():
    for entry in catalogue.recipes():
        function = entry.load()
        parameters = list(inspect.signature(function).parameters.values())
        assert [p.name for p in parameters] == [field.name for field in entry.fields]
        for parameter, field in zip(parameters, entry.fields, strict=True):
            default = eval(field.default, {**vars(schedule), **vars(sys.modules[entry.module])})
            assert parameter.default == default, f"{entry.name}.{field.name}"
        assert function.__name__ == entry.name


def test_a_part_as_its_file_describes_it():
    entry = catalogue.find("part", "divide_by_group_std")
    assert entry.folder == "advantage/scale"
    assert entry.module == "strop.parts.advantage.scale.divide_by_group_std"
    eps, std, *_ = entry.fields
    assert (eps.name, eps.annotation, eps.default) == ("eps", "float", "1e-06")
    assert eps.comment.startswith("Added to the deviation; in reward units. Default: released")
    assert std.default == "'unbiased'"
    assert entry.reads == ("advantage_B", "group_B", "scored_B", "num_groups")
    reads = "advantage_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool"
    assert entry.line("Reads") == reads
    assert entry.line("Nearest part") == "divide_by_group_mad"
    assert entry.line("Edges").startswith("group of one -> divided by factor + eps; all 0 -> 0")
    assert entry.line("Nothing") == ""


def test_what_a_file_takes_from_its_neighbours_is_not_read(tmp_path):
    """Neither a run nor a page needs it."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from beside import COLUMNS, parent\n\n\nclass Mine:\n    kind = 'probe'\n"
        "    writes = COLUMNS\n\n\nclass More:\n    kind = 'probe'\n"
        "    writes = ('a_B', *COLUMNS)\n\n\n"
        "@inherits(parent, x=3)\ndef recipe(y=1, **parent) -> 'Algorithm': ...\n"
    )
    assert catalogue.find("part", f"{path}:Mine").writes == ("COLUMNS",)
    assert catalogue.find("part", f"{path}:More").writes == ("('a_B', *COLUMNS)",)
    assert [field.name for field in catalogue.find("recipe", f"{path}:recipe").fields] == ["y"]


def test_a_regime_that_cannot_be_read_is_refused(tmp_path):
    path = tmp_path / "mine.py"
    for line in ("`lr='3` (loss > 0.5)", "`lr=3` (loss > 0,5)"):
        path.write_text(
            f'def recipe() -> "Algorithm":\n    """A recipe.\n\n    Differs once: {line}\n    """\n'
        )
        with pytest.raises(UserError, match=r"recipe: its line .* cannot be read"):
            _ = catalogue.find("recipe", f"{path}:recipe").regime


def test_two_labels_on_one_line_are_told_apart():
    entry = catalogue.find("part", "average_over_tokens")
    assert entry.line("Reads") == "denominator_T [T] bool"
    assert entry.line("Writes") == "share_T [T] float"


def test_a_recipe_as_its_file_describes_it():
    entry = catalogue.find("recipe", "mc_grpo")
    assert entry.arxiv == "2601.22582"
    assert (entry.line("Parent"), entry.line("Status")) == ("grpo", "exact")
    assert entry.line("Family") == "baselines"
    assert "subtract_group_median" in entry.brings
    assert "clip_both_sides" not in entry.brings  # its parent's


def test_what_a_recipe_brings_is_in_it():
    for entry in catalogue.recipes():
        assert set(entry.brings) <= {part.name for part in catalogue.parts()}, entry.name
    brought = {name for entry in catalogue.recipes() for name in entry.brings}
    assert len(brought) > 100


def test_folders():
    assert {e.folder for e in catalogue.parts("advantage/scale")} == {"advantage/scale"}
    assert {e.folder.split("/")[0] for e in catalogue.parts("loss")} == {"loss"}
    with pytest.raises(UserError, match=r"no folder of parts 'advantage/scales', did you mean adv"):
        catalogue.parts("advantage/scales")


def test_names():
    assert camel("divide_by_group_std") == "DivideByGroupStd"
    with pytest.raises(UserError, match=r"no recipe 'gpro', did you mean .*grpo.*`strop recipes`"):
        catalogue.find("recipe", "gpro")
    with pytest.raises(UserError, match="no part 'zzzz'; `strop parts` lists all of them"):
        catalogue.find("part", "zzzz")
    with pytest.raises(UserError, match="no part 'grpo': it is a recipe; `strop parts`"):
        catalogue.find("part", "grpo")
    with pytest.raises(UserError, match="no recipe 'clip_both_sides': it is a part; `strop rec"):
        catalogue.find("recipe", "clip_both_sides")
    with pytest.raises(UserError, match="it is a reward function, --reward math_verify;"):
        catalogue.find("part", "math_verify")
    assert nearest("clip_hihg", ["clip_high", "eps"]) == ", did you mean clip_high?"
    assert nearest("zzz", ["clip_high", "eps"]) == ""
    # three letters of each are in order; swapped ones count first, the others stay as they were
    assert (
        nearest("gpro", ["gspo", "igpo", "gapo", "grpo"]) == ", did you mean grpo or igpo or gspo?"
    )
    assert nearest("gpro", []) == ""


def test_a_name_is_looked_for_in_the_file_that_bears_it_where_a_file_can():
    for kind, name in (("recipe", "grpo"), ("part", "spread_evenly")):
        found = catalogue._in_its_file(kind, name)
        assert found is not None
        assert found.name == name
    with pytest.raises(UserError, match=r"no recipe 'a{300}'; `strop recipes` lists all of them"):
        catalogue.find("recipe", 300 * "a")


def test_the_model_of_a_recipe_is_read_from_its_file_alone(monkeypatch) -> None:
    every = {entry.name: catalogue.model_of(f"{entry.name}(x=1)") for entry in catalogue.recipes()}
    assert every == {entry.name: entry.line("Model") for entry in catalogue.recipes()}
    assert set(every.values()) > {""}
    monkeypatch.setattr(catalogue, "recipes", None)
    assert catalogue.model_of("grpo(beta=0)") == ""


def test_a_changed_file_is_read_again(tmp_path):
    file = tmp_path / "rec.py"
    for name in ("one", "other"):
        with file.open("a", encoding="utf-8") as lines:
            lines.write(f'def {name}() -> "Algorithm":\n    """Mine."""\n    return grpo()\n')
        assert catalogue.find("recipe", f"{file}:{name}").name.endswith(name)


def test_a_line_of_a_docstring_goes_on_behind_a_colon_that_no_label_has() -> None:
    assert catalogue.find("recipe", "ace").line("Equation").endswith("others stay")
    assert catalogue.find("recipe", "gae").line("Code").endswith("OpenRLHF carry it)")


def test_a_regime_is_shown_by_more_than_rounding():
    def shown(sign):
        regime = Regime(("grpo",), "kl", sign, 1.0)
        return [regime.shown_by(value) for value in (0.99, 1.0, 1 + 1e-9, 1.01)]

    assert shown("<") == [True, False, False, False]
    assert shown(">") == [False, False, False, True]
    assert shown("!=") == [True, False, False, True]


LABELS = {
    "recipe": {
        "Code", "Parent", "Status", "Family", "In short", "Choose it when", "Equation", "Model",
        "Differs from the parent", "Differs from the paper", "Differs once", "In full once", "Try",
    },
    "part": {
        "Reads", "Writes", "Source", "Differs from the source", "Nearest part", "Edges", "Metric",
        "Metrics",
    },
}  # fmt: skip


def strays(doc: str, labels: set[str]) -> list[str]:
    """What `Entry.line` takes for labels, from the first label on, and is none."""
    first = re.search(rf"\b({'|'.join(labels)}):", doc)
    shaped = re.compile(r"^[ ]*([A-Z][A-Za-z ]*):|\.\s+([A-Z][a-z]+):", re.M)
    found = shaped.finditer(doc, first.start()) if first else ()
    return [name for one in found if (name := one[1] or one[2]) not in labels]


def test_no_sentence_of_a_docstring_is_cut_off_by_what_looks_like_a_label():
    for kind, entries in (("recipe", catalogue.recipes()), ("part", catalogue.parts())):
        found = {e.name: strays(e.doc, LABELS[kind]) for e in entries}
        assert {name: words for name, words in found.items() if words} == {}
    spoilt = "A method.\n\nStatus: exact. Try: eps, and\nNote: more. So: less."
    assert strays(spoilt, LABELS["recipe"]) == ["Note", "So"]
