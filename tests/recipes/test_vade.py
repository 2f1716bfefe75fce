import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from models import Lab, without_times
from runs import Runner

from strop.method import reading
from strop.parts.sampling._tracked import Tracked
from strop.parts.sampling.draw_uncertain_prompts import DrawUncertainPrompts, information
from strop.recipes.grpo import grpo
from strop.recipes.vade import vade
from strop.support.errors import UserError


def tracked(sums):
    """uid -> (right, wrong)."""
    uids = sorted(sums)
    right, wrong = (torch.tensor([sums[u][n] for u in uids], dtype=torch.float64) for n in (0, 1))
    return Tracked(torch.tensor(uids), right, wrong, right / (right + wrong), right + wrong)


def drawn(part, known, pool, seed=0, state=None, num_wanted=None):
    rng = torch.Generator().manual_seed(seed)
    return part(pool, known, rng, state or part.init(), num_wanted)


def test_worked_example_of_the_information():
    p = np.array([0.1, 0.25, 1 / 3, 0.5, 0.75])
    assert information(p, 1, 2) == pytest.approx([0.081, 0.1406, 0.1481, 0.125, 0.0469], abs=5e-5)
    assert information(p, 1, 1)[3] == information(p, 1, 1).max()
    assert information(np.linspace(0, 1, 3001), 1, 2).max() == pytest.approx(4 / 27, abs=1e-6)


def test_the_greedy_form_takes_the_largest_information_of_the_means():
    # means (right + 1) / (n + 2): .9, .5, .3, .1, and an unseen prompt's .5
    known = tracked({10: (8, 0), 11: (4, 4), 12: (2, 6), 13: (0, 8)})
    part = DrawUncertainPrompts(num_prompts=3, num_rollouts=4, greedy=True)
    found = drawn(part, known, (13, 12, 11, 10, 14))
    assert [draw.uid for draw in found.value] == [12, 11, 14]
    assert found.value[0].why == "information 0.147 at a drawn success of 0.30"
    assert found.metrics["draw/success"] == pytest.approx((0.3 + 0.5 + 0.5) / 3)
    more = drawn(part, known, (13, 12, 11, 10, 14), state=found.state, num_wanted=1)
    assert [draw.uid for draw in more.value] == [13]  # .1 * .81 against .9 * .01
    again = drawn(part, known, (13, 12, 11, 10, 14), num_wanted=7)
    assert [draw.uid for draw in again.value] == [12, 11, 14, 13, 10, 12, 11]


def test_a_draw_from_the_belief_has_its_mean_and_misses_what_is_sure():
    known = tracked({1: (400, 800), 2: (10_000, 0), 3: (0, 10_000)})
    part = DrawUncertainPrompts(num_prompts=1)
    found = [drawn(part, known, (1, 2, 3), seed) for seed in range(200)]
    assert {each.value[0].uid for each in found} == {1}
    mean = np.mean([each.metrics["draw/success"] for each in found])
    assert mean == pytest.approx(401 / 1202, abs=0.005)
    unseen = [drawn(part, tracked({}), (1, 2, 3), seed).value[0].uid for seed in range(300)]
    assert np.bincount(unseen, minlength=4)[1:] == pytest.approx([100] * 3, abs=35)


def test_recipe_and_refusals():
    assert vade().paths()["sampling.track_success.keep"] == 0.2
    without = reading.replace_stage(vade(num_rollouts=16), "sampling", "draw_in_shuffled_order")
    assert without == grpo()
    with pytest.raises(UserError, match="powers"):
        DrawUncertainPrompts(powers=(-1.0, 1.0))
    with pytest.raises(UserError, match="num_prompts"):
        DrawUncertainPrompts(num_prompts=0)


def test_a_run_says_why_and_goes_on_as_it_would_have(tmp_path):
    lab = Lab.make(tmp_path)
    raw = lab.raw("vade", reward="even")
    raw["algorithm"]["sampling.num_prompts"] = 3
    Runner().whole(raw, tmp_path / "whole")
    cut = {**raw, "training": {**raw["training"], "steps": 2}}
    Runner().whole(cut, tmp_path / "cut")
    runner = Runner()
    runner.go(runner.resume(tmp_path / "cut", training={"steps": 3}))
    assert without_times(tmp_path / "cut") == without_times(tmp_path / "whole")
    rows = pq.read_table(tmp_path / "whole" / "rollouts" / "step-000003.parquet").to_pylist()
    again = pq.read_table(tmp_path / "cut" / "rollouts" / "step-000003.parquet").to_pylist()
    assert [row["draw/why"] for row in rows] == [row["draw/why"] for row in again]
    assert all(row["draw/why"].startswith("information 0.") for row in rows)
    lines = Path(tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert last["tracked/prompts"] >= 3
    known = {row["uid"]: (row["draw/past_success"], row["draw/past_answers"]) for row in rows}
    earlier = [
        row
        for step in (1, 2)
        for row in pq.read_table(
            tmp_path / "whole" / "rollouts" / f"step-00000{step}.parquet"
        ).to_pylist()
    ]
    for uid, (success, answers) in known.items():
        met = [row["reward"] for row in earlier if row["uid"] == uid]
        assert answers == len(met)
        assert (success is None) == (not met)
