"""The two listing commands: their output, and that the lists do not import torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from commands import launch
from every import every
from typer.testing import CliRunner

from strop.catalogue import catalogue
from strop.catalogue.families import FAMILIES
from strop.cli import listing
from strop.support.errors import UserError

app = typer.Typer()
app.command("recipes")(listing.recipes)
app.command("parts")(listing.parts)


def say(*arguments: str, columns: int = 200) -> str:
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, list(arguments))
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def whole(*arguments: str) -> str:
    """What is said in 80 columns, of which nothing is cut off."""
    text = say(*arguments, columns=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    return text


def names(*arguments: str) -> list[str]:
    return [item["name"] for item in json.loads(say("recipes", *arguments, "--json"))]


@pytest.mark.parametrize("columns", ["80", "60"])
def test_every_recipe_stands_on_a_line_of_80_columns_under_its_family(columns):
    shown = CliRunner(env={"COLUMNS": columns}).invoke(app, ["recipes"]).output.splitlines()
    assert max(map(len, shown)) <= 80
    heads = [f"{family.name}: {family.title}" for family in FAMILIES]
    assert [line for line in shown if line in heads] == heads
    under, found = "", {}
    for line in shown:
        if line in heads:
            under = line.split(":")[0]
        elif line:
            found[line.split()[0]] = (under, *line.split(maxsplit=2)[1:])
    for entry in catalogue.recipes():
        family, arxiv, words = found[entry.name]
        assert (family, words) == (entry.line("Family"), entry.line("In short"))
        assert arxiv == entry.arxiv
        assert len(arxiv) == 10
    order = list(found)
    assert order.index("dr_grpo") + 1 == order.index("canon"), "a child follows its parent"


def test_words_that_are_no_name_search():
    assert names("ratios", "random") == names("random RATIOS") == ["rover"]
    assert names("subtract_group_median") == names("group_median") == ["mc_grpo"], "parts"
    assert set(names("staleness")) >= {"vcpo", "mrs"}, "families"
    assert "bapo" in names("old", "answers")
    assert "rloo" not in names("old", "answers"), "should hold"
    assert names("MiniMax") == ["cispo"], "titles"
    found = names("entropy")
    assert {"entropy_bonus", "siren", "canon"} < set(found) < set(names())
    assert "rloo" not in found
    assert "1 recipe. `strop" in say("recipes", "MiniMax")


def test_a_word_that_is_no_part_searches_parts():
    found = {item["name"] for item in json.loads(say("parts", "covariance", "--json"))}
    assert found >= {"drop_high_covariance_tokens", "penalise_high_covariance_tokens"}
    assert "clip_both_sides" not in found
    with pytest.raises(UserError, match="did you mean subtract_group_mean"):
        say("parts", "subtract_group_men")
    with pytest.raises(UserError, match="is a recipe"):
        say("parts", "dapo")


def test_filters():
    critics = names("--family", "critics")
    assert "gae" in critics
    assert critics == [e.name for e in catalogue.recipes() if e.line("Family") == "critics"]
    assert names("--status", "abstract") == [
        "adhint", "advevo_public_baseline", "craft_gui", "scope_recycle",
    ]  # fmt: skip
    assert names("hints", "--status", "abstract") == ["adhint"]
    # With a filter a name is a word like another.
    assert names("gspo", "--family", "baselines") == ["gspo_n"]


def test_filters_of_what_a_method_needs():
    critics = names("--needs", "critic")
    assert {"gae", "ppo_clip", "archer"} < set(critics)
    assert "grpo" not in critics
    assert "archer" not in names("--needs", "critic", "--without", "environment")
    plain = set(names("--without", "critic", "--without", "reference", "--without", "environment"))
    assert {"grpo", "dapo"} < plain
    assert not plain & {*critics, "entrocraft", "gigpo"}


def test_a_place_in_the_paper_is_whole():
    for name, place in (
        ("ppo_clip", "eq. 7; dual clip arXiv 1912.09729, eq. 5"),
        ("gae", "eq. 16; the loss arXiv 1707.06347, eq. 7 and 9"),
        ("dr_grpo", "sec. 3.2"),
    ):
        assert json.loads(say("recipes", name, "--json"))["where"] == place


def test_help_is_whole_at_80_columns(strop, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("train", "eval", "sample", "export", "report", "doctor", "recipes", "parts"):
        text = strop(command, "--help").out
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text, command


OWN = """
from strop.method.part import Selected

class KeepWhatIsLong:
    kind = "selection"

    def __call__(self, length_B, rng, mask_T=None):
        return Selected(mask_T, mask_T, "short")

class Double:
    kind = "advantage/scale"

    def __call__(self, advantage_B):
        return 2 * advantage_B

class Both(Double):
    '''Reads: advantage_B.   Writes: advantage_B.'''

    kind = "advantage/scale"
    writes = ("advantage_B", "trace_B")

    def __call__(self, advantage_B, group_B):
        return advantage_B, group_B
"""


@pytest.mark.parametrize(
    ("name", "reads", "writes"),
    [
        ("KeepWhatIsLong", "length_B, mask_T", "a Selected"),
        ("Double", "advantage_B", "advantage_B"),
        ("Both", "advantage_B, group_B", "advantage_B, trace_B"),
    ],
)
def test_what_an_own_part_reads_and_writes_follows_from_its_code(name, reads, writes, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    text = whole("parts", f"{tmp_path}/own.py:{name}")
    assert f"Reads: {reads}.\n" in text
    assert f"Writes: {writes}.\n" in text


OWN_RECIPE = """
import dataclasses
from typing import ClassVar

from strop.method.algorithm import Algorithm
from strop.method.part import Result, Use
from strop.recipes.grpo import grpo


@dataclasses.dataclass(frozen=True)
class Halve:
    kind: ClassVar[str] = "advantage/scale"
    # Factor on every advantage. Default: ours.
    by: float = 0.5

    def __call__(self, advantage_B):
        return Result(advantage_B * self.by, metrics={"halved": self.by})


def mine(by: float = 0.5) -> Algorithm:
    \'\'\'Halves. Parent: grpo.\'\'\'
    chain = grpo().advantage
    return dataclasses.replace(grpo(), advantage=(chain[0], Use(Halve(by)), chain[-1]))
"""


def test_the_page_of_an_own_recipe_has_what_its_own_parts_log_and_mean(tmp_path):
    (tmp_path / "recipes.py").write_text(OWN_RECIPE)
    page = json.loads(say("recipes", f"{tmp_path}/recipes.py:mine", "--json"))
    assert page["metrics"] == ["halved"]
    assert page["parameters"][0]["meaning"] == "Factor on every advantage. (halve)"
    assert json.loads(say("parts", f"{tmp_path}/recipes.py:Halve", "--json"))["metrics"] == [
        "halved"
    ]


@pytest.mark.parametrize(
    ("command", "name", "message"),
    [
        ("parts", "", r"own.py is a file: name one of its parts, \S+own.py:KeepWhatIsLong, "),
        (
            "parts",
            ":Doubel",
            r"no class Doubel, did you mean Double\?; its parts: \S+Keep",
        ),
        ("recipes", "", r"own.py is a file: name one of its recipes, \S+own.py:mine$"),
        (
            "recipes",
            ":main",
            r"no function main, did you mean mine\?; its recipes: \S+:mine$",
        ),
    ],
)
def test_a_file_named_without_one_of_its_parts_lists_them(command, name, message, tmp_path):
    (tmp_path / "own.py").write_text(f"{OWN}\ndef mine() -> Algorithm: ...\n")
    with pytest.raises(UserError, match=message):
        say(command, f"{tmp_path}/own.py{name}")


def test_the_list_as_json_is_complete():
    found = json.loads(say("recipes", "--json"))
    assert [item["name"] for item in found] == [entry.name for entry in catalogue.recipes()]
    for item in found:
        assert all(item.values()), item


@every("name", [entry.name for entry in catalogue.recipes()])
def test_page_of_a_recipe(name):
    page = listing.recipe_page(catalogue.find("recipe", name), name)
    assert json.loads(json.dumps(page)) == page
    assert page["equation"]
    assert page["differs_from_parent"]
    assert any(parts for stage, parts in page["stages"].items() if stage.startswith("sampling"))


# Only some pages in 80 columns: laying one out takes longer than computing its contents.
@every("name", [entry.name for entry in catalogue.recipes()][::6])
def test_page_of_a_recipe_in_80_columns(name):
    page = listing.recipe_page(catalogue.find("recipe", name), name)
    text = whole("recipes", name)
    assert f"Family: {page['family']}. In short: {page['in_short']}." in text
    assert page["choose_it_when"] in " ".join(text.split())
    headings = ("Choose it when", "Equation", "Parts, stage by stage", "Parameters")
    for heading in (*headings, "Differs from the paper"):
        assert heading in text
    assert all(parameter["name"] in text for parameter in page["parameters"])


def test_a_page_is_of_the_parameters_that_are_given():
    assert "penalise_kl_to_reference" not in say("recipes", "grpo")
    assert "penalise_kl_to_reference" in say("recipes", "dr-GRPO(beta=0.04)")
    with pytest.raises(UserError, match="recipe grpo has no parameter bogus"):
        say("recipes", "grpo(bogus=1)")


def test_a_page_as_json_is_that_page():
    found = json.loads(say("recipes", "grpo", "--json"))
    assert found == listing.recipe_page(catalogue.find("recipe", "grpo"), "grpo")
    found = json.loads(say("parts", "clip_both_sides", "--json"))
    assert found == listing.part_page(catalogue.find("part", "clip_both_sides"))


def test_defaults_of_a_recipe_are_values_and_not_names_of_constants():
    parameters = json.loads(say("recipes", "entrocraft", "--json"))["parameters"]
    assert {p["name"]: p["default"] for p in parameters}["h_low"] == "linear(0.6, 0.4)"


def test_parts_by_folder():
    everything, some = whole("parts"), whole("parts", "loss/bound/")
    assert "advantage/baseline" in everything
    assert "advantage/baseline" not in some
    assert "\n  clip_both_sides(clip_low=0.2, clip_high=0.2, dual_clip_c=0.0)\n" in some
    for entry in catalogue.parts():
        assert f"  {entry.name}" in everything
        assert entry.summary in " ".join(everything.split())
    names = {item["name"] for item in json.loads(say("parts", "advantage", "--json"))}
    assert names == {entry.name for entry in catalogue.parts("advantage")}


@every("name", [entry.name for entry in catalogue.parts()])
def test_page_of_a_part(name):
    page = listing.part_page(catalogue.find("part", name))
    assert json.loads(json.dumps(page)) == page
    assert page["source"]
    assert page["nearest_part"]
    assert all("Default: " in field["meaning"] for field in page["fields"])


@every("name", [entry.name for entry in catalogue.parts()][::6])
def test_page_of_a_part_in_80_columns(name):
    page = listing.part_page(catalogue.find("part", name))
    text = whole("parts", name)
    assert all(field["name"] in text for field in page["fields"])


def test_equation_and_brackets_are_printed_as_they_stand():
    text = say("parts", "clip_both_sides")
    assert "min(rho_t * A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) * A_t)" in text
    assert "log_ratio_T [T] float" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("recipes", "grp0"), "no recipe 'grp0', did you mean .*grpo"),
        (("recipes", "--family", "entrpy"), "no family 'entrpy', did you mean entropy.*baselines,"),
        (
            ("recipes", "--status", "exat"),
            "no status 'exat', did you mean exact.*partial, abstract",
        ),
        (
            ("recipes", "unfinished", "--family", "critics", "--status", "abstract"),
            "no recipe has all of: words 'unfinished', family 'critics', status 'abstract'",
        ),
        (("recipes", "--needs", "critc"), "no need 'critc', did you mean critic.*teacher, env"),
        (
            ("recipes", "--needs", "critic", "--without", "critic"),
            "--needs and --without leave none of these recipes",
        ),
        (("parts", "clip_both_side"), "no part or folder 'clip_both_side', did you mean clip_both"),
        (("parts", "advantge"), "did you mean advantage"),
        (("parts", "grpo"), "grpo is a recipe; see `strop recipes grpo`"),
    ],
)
def test_unknown_names_get_the_nearest(arguments, message):
    with pytest.raises(UserError, match=message):
        say(*arguments)


def test_lists_and_help_import_nothing_heavy():
    code = (
        "import sys, io, contextlib\n"
        "from strop.cli import listing, main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    listing.recipes(); listing.parts(); listing.parts('clip_both_sides')\n"
        "heavy = 'torch', 'transformers', 'numpy', 'pyarrow'\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_list_that_cannot_be_written_is_an_error(tmp_path):
    error = tmp_path / "error"
    process = launch(["recipes", "--json"], Path("/dev/full"), error=error)
    process.join(60)
    assert process.exitcode == 1
    assert error.read_text() == (
        "stopped: the output could not be written: No space left on device\n"
    )


def test_a_reader_may_leave_a_list_early():
    command = [sys.executable, "-m", "strop", "recipes", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (0, b"")
