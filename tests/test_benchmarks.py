"""What programs of benchmarks/ compute, without their measurements."""

import re
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import engine_profile
import strategy_beside_plain


def test_passes_are_counted_of_a_model_that_generates_without_its_modules(monkeypatch, capsys):
    for name in ("by_operator", "by_function"):
        monkeypatch.setattr(engine_profile, name, lambda *_: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(sys, "argv", ["", "--model", "tiny", "--kind", "equal", "--answers", "2"])
    engine_profile.main()
    # A pass over the prompts, and one for each of 96 tokens.
    assert re.search(r"192 tokens in 97 passes, \d+ tokens/s", capsys.readouterr().out)


def test_drawn_tokens_are_of_dropped_answers_too_and_not_of_a_store():
    line = {"completions/mean_length": 10.0, "data/rollouts_kept": 16.0,
            "data/tokens_sampled": 90.0, "rollout/tokens_thrown_away": 5.0}  # fmt: skip
    assert strategy_beside_plain.drawn(line) == 95
    assert strategy_beside_plain.drawn({"step": 0}) == 0
