"""Every recipe trains, and a step does not depend on how its rows are split into micro-batches."""

import json
import math

import pytest
from models import Lab
from runs import Runner

from strop import catalogue
from strop.training.record import read_metrics

NAMES = [entry.name for entry in catalogue.recipes()]
# 1 where an even number of digits was written; what it measures is there for recipes that ask.
REWARD = """
def even(completions, log_extra, **columns):
    digits = [sum(c.isdigit() for c in text) for text in completions]
    log_extra("speedup", [1 + n / 4 for n in digits])
    log_extra("profiled", [min(0.2 + n / 4, 1.0) for n in digits])
    log_extra("decoy", [n == 5 for n in digits])
    return [float(n % 2 == 0) for n in digits]
"""
# What depends on the machine, or on the split itself.
APART = ("timing_s/", "perf/", "step_time")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Prompts with a demonstration each; about half of the answers are right."""
    lab = Lab.make(tmp_path_factory.mktemp("lab"))
    rows = [{"prompt": f"{n}+{3 * n % 7}:", "answer": str(n), "completion": f"={n}"}
            for n in range(12)]  # fmt: skip
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    lab.rewards.write_text(REWARD, encoding="utf-8")
    return lab


def trained(lab, recipe, folder, token_budget):
    """The metrics of two steps."""
    training = {"steps": 2, "save_every": 0, "rollouts_every": 0, "token_budget": token_budget}
    raw = lab.raw(recipe, reward="even", training=training)
    raw["algorithm"]["sampling.num_prompts"] = 3
    runner = Runner()
    runner.whole(raw, folder)
    return [line for line in read_metrics(folder) if line["step"] > 0]


@pytest.mark.parametrize("recipe", NAMES)
def test_two_steps_in_small_and_in_large_micro_batches(recipe, lab, tmp_path):
    small = trained(lab, recipe, tmp_path / "small", 32)
    large = trained(lab, recipe, tmp_path / "large", 4096)
    assert [line["step"] for line in small] == [1, 2]
    for line in small:
        assert all(value is not None and math.isfinite(value) for value in line.values())
    assert any(line["grad_norm"] > 0 for line in small)
    assert small[0].keys() == large[0].keys()
    for name, value in small[0].items():
        if not name.startswith(APART):
            assert value == pytest.approx(large[0][name], rel=2e-3, abs=2e-5), name
