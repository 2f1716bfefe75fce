"""`strop labs`: its list, its runs, and its message if there is nothing to run."""

import json
import os
import sys
import textwrap

import pytest
import typer

from strop.cli import labs
from strop.cli.main import app
from strop.support.about import SOURCE
from strop.support.errors import UserError

FOLDER = SOURCE.parents[1] / "labs"


@pytest.fixture
def executed(monkeypatch):
    """What takes the place of this process."""
    found = []
    monkeypatch.setattr(os, "execv", lambda *words: found.append(words))
    return found


def test_all_are_listed_with_what_they_are_their_papers_and_how_long_they_take(strop):
    result = strop("labs")
    assert (result.code, result.err) == (0, "")
    told = json.loads(strop("labs", "--json").out)
    assert [each["name"] for each in told] == sorted(path.stem for path in FOLDER.glob("*.py"))
    lines = result.out.splitlines()
    for each in told:
        assert len(each["what"]) > 20
        assert each["papers"], f"{each['name']} names no paper"
        assert each["takes"] != "?", f"labs/{each['name']}.py has no line `Takes: ...`"
        where = "doi" if each["name"] == "event_log_corpus" else "arXiv"
        head = f"{each['name']}: {where} {', '.join(each['papers'])}; {each['takes']}"
        below = textwrap.fill(each["what"], 80, initial_indent="  ", subsequent_indent="  ")
        assert below.splitlines()[0] == lines[lines.index(head) + 1]
    assert str(FOLDER) in result.out


def test_words_behind_the_name_are_the_laboratorys(strop, executed):
    strop("labs", "swe_next", ".", "--commits", "3", "--help")
    program = str(FOLDER / "swe_next.py")
    assert executed == [
        (sys.executable, [sys.executable, program, ".", "--commits", "3", "--help"])
    ]


def test_a_name_that_there_is_not(strop, executed):
    result = strop("labs", "swe_nxt")
    assert (result.code, executed) == (2, [])
    assert result.err == (
        "error: no laboratory 'swe_nxt', did you mean swe_next?; `strop labs` lists all\n"
    )
    for name in ("../labs/swe_next", "swe_next.py"):
        assert strop("labs", name).code == 2


def test_an_installation_without_them_says_where_they_are(monkeypatch, tmp_path):
    monkeypatch.setattr(labs, "PLACES", (tmp_path / "labs",))
    with pytest.raises(UserError, match="in every wheel and in the folder labs/ of"):
        labs.folder()
    (tmp_path / "labs").mkdir()
    assert labs.folder() == tmp_path / "labs"


def test_names_are_completed():
    assert [name for name, _ in labs.offered("swe")] == ["swe_next"]
    offers = typer.main.get_command(app).commands["labs"].params
    assert any(param.name == "name" for param in offers)
