"""The short runs of strategies: each can be made, its metrics are explained, the page has it."""

import re
import sys
from pathlib import Path

import pytest
from metrics_page import undocumented

from strop.training.settings import config

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import floor  # noqa: E402
import strategies_run  # noqa: E402

PAGE = ROOT / "docs" / "evidence" / "strategies.md"


@pytest.mark.parametrize("name", strategies_run.RUNS)
def test_every_run_can_be_made(name):
    short = strategies_run.RUNS[name]
    made = config.make(short.raw(name, 20, 0))
    made.build()
    assert made.data.task == short.task
    assert made.model.name == ("tiny-worked" if short.task == strategies_run.WORKED else "tiny")
    assert short.own
    assert not undocumented(short.own)


def test_a_line_of_the_table(tmp_path, monkeypatch):
    """Without the run: 64 answers of 40 tokens, half of them with a gradient."""
    line = {"rewards/correct/mean": 0.5, "completions/mean_length": 40.0, "data/rollouts_kept": 64,
            "groups/frac_rollouts_with_gradient": 0.5, "drawn": 3000, "worked": 0.25}  # fmt: skip
    late = {**line, "rewards/correct/mean": 0.75, "pruning/stopped": 30.0, "worked": 0.75}
    log = [*[line] * 5, late]
    monkeypatch.setattr(floor, "trained", lambda raw, folder, course: log)
    row = strategies_run.row_of("arrol", tmp_path, 6, 0)
    assert (row["first"], row["last"]) == ("0.500", "0.550")  # (4 * 0.5 + 0.75) / 5
    assert (row["sampled"], row["trained"], row["seconds"]) == ("3000", "1280", "0.33")
    assert row["own"] == "pruning/stopped 30"


def test_the_page_has_a_line_and_a_remark_for_every_recipe_that_ran():
    text = PAGE.read_text(encoding="utf-8")
    ran = re.findall(
        r"^\| `(\w+)` \|.*\| \S.* \|$", text, re.MULTILINE
    )  # the last: its own metrics
    assert set(ran) == set(strategies_run.RUNS)
    for name in ran:
        assert f"- `{name}`" in text
