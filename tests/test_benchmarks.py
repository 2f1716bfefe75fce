"""What programs of benchmarks/ compute, without their measurements."""

import argparse
import re
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import engine_profile
import environment_faults
import failing_grader
import strategy_beside_plain
import two_attempts

from strop.training.settings import config


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


def test_the_interval_of_a_share_stays_in_0_to_1():
    # The models of `grpo` in docs/evidence/two_retries.csv.
    spoilt = (0.0, 0.0, 0.007763975155279503, 0.0014184397163120568, 0.006038647342995169)
    assert two_attempts.shown("spoilt", spoilt) == "0.003 (0.001 to 0.008)"
    assert two_attempts.shown("after", spoilt) == "0.003 (-0.001 to 0.008)"
    assert two_attempts.shown("mended", [float("nan")]) == "none, of 1 models"


@pytest.mark.parametrize(("steps", "expected"), [(3, 1.0), (12, 0.75)])
def test_the_last_sixth_of_a_run_is_a_step_or_more(steps, expected, monkeypatch, tmp_path):
    lines = [{"step": n, "reward": 0.5} for n in range(1, steps + 1)]
    scores = {f"step-{steps:06d}": [1.0, 1.0], f"step-{steps - 1:06d}": [1.0, 0.0]}
    monkeypatch.setattr(failing_grader, "lines_of", lambda folder: lines)
    monkeypatch.setattr(
        failing_grader.pq, "read_table",
        lambda path: pa.table({"reward/compute_score": scores[path.stem]}),
    )  # fmt: skip
    assert failing_grader.measure(tmp_path, steps)["success"] == expected


def test_steps_of_faulty_episodes_have_a_limit_only_where_it_can_end_them(tmp_path):
    """`data.env_timeout_seconds` is refused for steps that run in the run's own process."""
    options = argparse.Namespace(out=tmp_path, seed=0)
    limited = [
        way for way in environment_faults.WAYS
        if "data_env_timeout_seconds" in environment_faults.trained(way, options, 1)
    ]  # fmt: skip
    assert limited == ["two workers", "awaited", "agent"]


def test_a_part_of_an_experiment_can_stand_where_its_docstring_puts_it():
    part = Path(engine_profile.__file__).with_name("keep_hard_groups.py")
    stage = f'"{part}:KeepHardGroups"(floor=10.0)'
    made = config.make({"recipe": "grpo", "stages": {"selection": stage}})
    assert made.build().selection[0].part.floor == 10.0
