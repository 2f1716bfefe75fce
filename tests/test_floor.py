"""The benchmark of every recipe: each has a setting that makes a run, and the page its numbers."""

import sys
from pathlib import Path

import pytest

from strop.catalogue import catalogue
from strop.support.tables import read_rows
from strop.training.settings import config

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import floor  # noqa: E402
import floor_settings  # noqa: E402

PAGE = ROOT / "docs" / "evidence" / "every_recipe_learns.md"


def test_every_recipe_has_a_setting(tmp_path):
    floor_settings.files(tmp_path)
    for entry in catalogue.recipes():
        setting = floor_settings.setting_of(entry.name, tmp_path)
        made = config.make(setting.raw(60, 0))
        made.build()
        assert setting.task in floor_settings.TASKS
        assert (made.data.environment() is not None) == (setting.task not in ("countdown", "moves"))


def test_experts_open_the_door():
    steps = floor_settings.expert(3)
    assert steps[-1]["action"] == "3"
    assert [step["action"] for step in steps].count("3") == 2  # the key, then the door
    assert steps[0]["observation"].startswith("1,2,3:")


def test_the_table_is_written_between_what_stands_around_it(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Before.\n\n| recipe | old |\n| --- | --- |\n| gone |\n\nAfter.\n")
    row = dict.fromkeys(floor.HEAD, "1") | {"recipe": "grpo", "options": ""}
    floor.write_page(page, [row])
    lines = page.read_text().splitlines()
    assert lines[:2] == ["Before.", ""]
    assert lines[-2:] == ["", "After."]
    assert lines[4].startswith("| `grpo` | 1 |  | 1 |")
    assert len(lines) == 7
    floor.write_page(page, [row])
    assert page.read_text().splitlines() == lines


def test_the_page_has_a_line_for_every_recipe_that_it_measured():
    rows = read_rows(PAGE.with_suffix(".csv"))
    text = PAGE.read_text(encoding="utf-8")
    trained = floor.not_in_the_atlas()  # by the page's command
    assert rows
    for row in rows:
        assert row["recipe"] in trained
        assert f"| `{row['recipe']}` | {row['task']} |" in text
        low = float(row["after"]) < float(row["floor"])
        assert row["learns"] == ("no" if low else "yes")


@pytest.mark.parametrize("name", ["grpo", "sft"])
def test_a_line_of_the_table(name, tmp_path, monkeypatch):
    """Without the run: what a log becomes."""
    key = "eval/validation/pass@1"
    log = [{key: 0.2}, {"entropy": 0.5}, {key: 0.29, "entropy": 0.4}]
    monkeypatch.setattr(floor, "trained", lambda raw, folder: log)
    row = floor.row_of(name, tmp_path, 60, 0)
    assert (row["before"], row["after"], row["floor"]) == ("0.200", "0.290", "0.300")
    assert (row["learns"], row["entropy"]) == ("no", "0.400")
