"""The commands on the pages of evidence are valid comparisons."""

import re
import shlex
from pathlib import Path

import pytest
from commands import Strop

from strop.comparison.plan import Plan

PAGES = Path(__file__).parents[2] / "docs" / "evidence"
BLOCK = re.compile(r"^    strop compare (.*?[^\\])$", re.M | re.S)


def test_the_commands_on_the_pages_make_plans(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    row = '{"prompt": "3,5:8=", "numbers": [3, 5], "target": 8}'
    (tmp_path / "pairs").mkdir()
    for name in ("hard_heldout", "pairs/train", "pairs/validation", "pairs/held_out"):
        (tmp_path / f"{name}.jsonl").write_text(row)  # which a command before it writes
    plans: dict[str, Plan] = {}
    monkeypatch.setattr(
        "strop.cli.compare.begin", lambda plan, out, jobs: plans.update({str(out): plan})
    )
    strop = Strop(monkeypatch, capsys)
    for page in sorted(PAGES.glob("*.md")):
        for words in BLOCK.findall(page.read_text(encoding="utf-8")):
            result = strop("compare", *shlex.split(words.replace("\\\n", " ")))
            assert result.code == 0, result.err
    assert set(plans) == {
        "g2", "g4", "hard", "corridor", "grpo400", "methods", "hpt", "stale16",
        "forking", "four", "small4", "w-grpo", "worked", "draws", "budgets", "attempts", "retries",
        "tuned", "tuned_more", "tuned_rates",
    }  # fmt: skip
    assert all(len(plan.seeds) == 5 for plan in plans.values())
    for name, settings in (("tuned", 30), ("tuned_more", 35)):
        tuned = plans.pop(name)
        assert len(tuned.entries) == settings
        assert all('lr = "linear(1e-3, 0)"' in entry.config for entry in tuned.entries)
    rates = plans.pop("tuned_rates").entries
    assert len(rates) == 24
    assert len({re.search(r"\nlr = (.+)", entry.config)[1] for entry in rates}) == 8  # type: ignore[index]
    assert all("lr = 0.0003\n" in e.config for plan in plans.values() for e in plan.entries)
    assert plans["methods"].scoring.at == (100, 200)
    assert plans["methods"].scoring.band == (0.3, 0.4)
    assert plans["hpt"].scoring.files == ("hard_heldout.jsonl",)
    assert [entry.label for entry in plans["g2"].entries] == [
        "grpo(num_rollouts=2)", "mc_grpo(num_rollouts=2, num_epochs=1, beta=0, floor=1e-12)",
        "grpo(num_rollouts=3)",
    ]  # fmt: skip
    assert "stages" in plans["corridor"].entries[0].config
    assert 'task = "corridor"' in plans["corridor"].entries[2].config
