import math

import pytest
import torch
from builders import NAN, flat_batch, run, stages
from fakes.services import FakeGrading, FakeLog, FakeServices
from models import Lab
from runs import Runner

from strop import functional
from strop.method import part as parts
from strop.method.part import Use
from strop.parts.reward.note_profiles import NoteProfiles
from strop.parts.reward.reward_profiled_speed import RewardProfiledSpeed
from strop.recipes.profiling_reward import profiling_reward
from strop.recipes.prs import prs
from strop.recipes.rloo import rloo
from strop.support.errors import UserError
from strop.tracking.metrics_file import read_metrics


def rewards(correct, speedup, profiled, decoy=None, **fields):
    batch = flat_batch(
        (1,) * len(correct), correct_B=correct, speedup_B=speedup, profiled_B=profiled,
        decoy_B=decoy or [False] * len(correct),
    )  # fmt: skip
    return run(RewardProfiledSpeed(**fields), batch).value.tolist()


def test_worked_example():
    assert rewards([True], [1.8], [0.4]) == pytest.approx([1.6])
    assert rewards([True], [1.8], [0.4], variant="paper") == pytest.approx([3.2])


def test_what_fails_gets_the_penalty():
    correct, speedup = [True, True, False, False], [7.0, 2.0, 2.0, NAN]
    found = rewards(correct, speedup, [0.5, 0.9, 0.9, NAN], [False, True, False, False])
    assert found == pytest.approx([0.5 + 1.5 + 0.25, 0, 0, 0])
    found = rewards(correct, speedup, [0.5, 0.9, 0.9, NAN], [False, True, False, False],
                    pay_incorrect=True, penalty=-1.0)  # fmt: skip
    assert found == pytest.approx([2.25, -1, 1.0, -1])
    assert rewards([True], [2.0], [NAN]) == pytest.approx([1.5])


def test_chances_of_the_worked_example():
    # PR .2, .35, .4, .9 -> 0, .5, 1, 1
    share = torch.tensor([0.2, 0.35, 0.4, 0.9], dtype=torch.float64).repeat(4000)
    mask = torch.ones(len(share), 1, dtype=torch.bool)
    gradient, counts = functional.selection(
        "prs", advantages=torch.ones(len(share)), mask=mask, profiled=share,
        correct=torch.ones(len(share)).bool(), decoy=torch.zeros(len(share)).bool(),
        rollout_uid=torch.arange(len(share)),
    )  # fmt: skip
    kept = gradient.double().reshape(-1, 4).mean(0)
    assert kept[[0, 2, 3]].tolist() == [0, 1, 1]
    assert abs(float(kept[1]) - 0.5) < 5 * math.sqrt(0.25 / 4000)
    assert counts.equal(gradient)


def test_reduces_to_its_parents():
    rewards_B = [1.6, 0.0, 2.0, 0.5]
    batch = flat_batch((2,) * 4, reward_B=rewards_B)
    ours, theirs = stages(profiling_reward(), batch), stages(rloo(clip_high=0.28), batch)
    assert ours["advantage_T"].equal(theirs["advantage_T"])
    assert profiling_reward().terms == rloo(clip_high=0.28).terms
    assert prs().reward == profiling_reward().reward


SAID = FakeServices(
    grading=FakeGrading(reward_names=("correct", "speed")),
    log=FakeLog({"profiled": {3: 0.5, 5: None}, "decoy": {5: True}}),
)


def test_measurements_are_rewards_or_logged_columns():
    batch = flat_batch(
        (1, 1), outcome_B=[1.0, 0.0], reward_BM=[[1.0, 2.5], [0.0, NAN]], rollout_uid_B=[3, 5]
    )
    part = NoteProfiles(speedup="speed")
    written = parts.write(batch, Use(part), parts.call(Use(part), batch, services=SAID))
    assert written["correct_B"].tolist() == [True, False]
    assert written["decoy_B"].tolist() == [False, True]
    assert written["speedup_B"][0] == 2.5
    assert written["speedup_B"][1].isnan()
    assert written["profiled_B"][1].isnan()
    with pytest.raises(UserError, match=r"logs it; there is correct, speed, profiled, decoy"):
        run(NoteProfiles(), batch, services=SAID)


REWARD = """
def right(completions, log_extra, **columns):
    digits = [sum(c.isdigit() for c in text) for text in completions]
    log_extra("speedup", [1 + n / 4 if n else None for n in digits])
    log_extra("profiled", [n / 6 for n in digits])
    log_extra("decoy", [n == 5 for n in digits])
    return [float(n % 2 == 0) for n in digits]
"""


def test_trains_on_what_a_reward_function_logs(tmp_path):
    lab = Lab.make(tmp_path / "lab")
    (tmp_path / "kernels.py").write_text(REWARD, encoding="utf-8")
    raw = lab.raw("prs", training={"steps": 2, "save_every": 0, "rollouts_every": 0})
    raw["reward"] = {"functions": [f"{tmp_path}/kernels.py:right"]}
    raw["algorithm"] |= {"sampling.num_rollouts": 16}
    runner = Runner()
    run = runner.start(raw, tmp_path / "run")
    seen = []
    runner.go(run, lambda now: seen.append(now.done))
    lines = [line for line in read_metrics(tmp_path / "run") if line["step"] > 0]
    assert seen == [1, 2]
    assert any(0 < line["profile/dropped_fraction"] < 1 for line in lines)
    assert any(line["reward"] not in (0, 1) for line in lines)


def test_a_reward_that_logs_nothing_is_named(tmp_path):
    lab = Lab.make(tmp_path / "lab")
    runner = Runner()
    run = runner.start(lab.raw("profiling_reward"), tmp_path / "run")
    with pytest.raises(UserError, match=r"log_extra\('decoy', values\)"):
        runner.go(run)
