"""The example in one file: it is short, it runs as typed, and its loop changes the weights."""

import re
import runpy
import sys

import pytest
import torch

from strop.support.about import SOURCE

FILE = SOURCE.parents[1] / "examples/one_file.py"


def test_it_has_at_most_200_lines_of_public_calls() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    taken = re.findall(r"^from (strop[\w.]*) import (\w+)", text, re.M)
    assert taken == [
        ("strop", "functional"), ("strop.assets", "model_folder"),
        ("strop.environments", "countdown"),
    ]  # fmt: skip


@pytest.mark.parametrize("recipe", ["grpo", "dr_grpo"])
def test_it_trains(
    recipe: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[torch.Tensor] = []
    step = torch.optim.AdamW.step

    def seen(optimiser: torch.optim.AdamW) -> None:
        first = optimiser.param_groups[0]["params"][0]
        before = first.detach().clone()
        step(optimiser)
        trained.append((first.detach() - before).abs().max())

    monkeypatch.setattr(torch.optim.AdamW, "step", seen)
    words = ["--steps", "2", "--prompts", "4", "--held-out", "8", "--recipe", recipe]
    monkeypatch.setattr(sys, "argv", [str(FILE), *words])
    runpy.run_path(str(FILE), run_name="__main__")
    before, last, after = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"pass@1 before: 0\.\d{3}", before)
    assert re.fullmatch(r"step 2/2  reward [01]\.\d{3}  clipped \d\.\d{3}  [\d.]+ s a step", last)
    assert re.fullmatch(r"pass@1 after: 0\.\d{3}", after)
    assert len(trained) == 4
    assert all(moved > 0 for moved in trained)
