import json

import pytest
import torch
from builders import flat_batch, run, stages
from fakes.services import FakeGrading, FakeLog, FakeServices
from models import Lab
from runs import Runner

from strop.environments.flawed_countdown import rows
from strop.parts.reward.penalise_flawed_answers import PenaliseFlawedAnswers
from strop.parts.reward.rescale_reward import RescaleReward
from strop.recipes.dapo import dapo
from strop.recipes.fapo import fapo
from strop.support.errors import UserError
from strop.tracking.metrics_file import read_metrics

JUDGED = """
def judged(completions, log_extra, **columns):
    digits = [sum(c.isdigit() for c in text) for text in completions]
    log_extra("flaw", [2 if n > 2 else None if n == 1 else -1 for n in digits])
    return [float(n % 2 == 0) for n in digits]
"""


def rewards(outcomes, flaws, penalty=1.0):
    """Rewards after rescaling and penalty; `flaws` as the judge logs them."""
    uids = list(range(len(outcomes)))
    batch = flat_batch((1,) * len(outcomes), outcome_B=outcomes, reward_B=outcomes,
                       rollout_uid_B=uids, reward_BM=[[o] for o in outcomes])  # fmt: skip
    batch = batch.set(reward_B=run(RescaleReward(), batch).value)
    logged = {"flaw": dict(zip(uids, flaws, strict=True))}
    services = FakeServices(grading=FakeGrading(reward_names=("right",)), log=FakeLog(logged))
    return run(PenaliseFlawedAnswers(penalty), batch, services=services).value, batch


@pytest.mark.parametrize(
    ("outcomes", "flaws", "expected"),
    [
        ([1.0, 1, 0, 0], [-1, 3, -1, 0], [1.305581, 0.261116, -0.783349, -0.783349]),
        ([1.0, 1, 0, 0], [-1, None, 2, -1], [0.866025, 0.866025, -0.866025, -0.866025]),
        ([1.0, 1, 1, 1], [-1, 0, 5, 1], [1.5, -0.5, -0.5, -0.5]),  # flawed ones are pushed down
    ],
)
def test_worked_examples(outcomes, flaws, expected):
    """A flaw is an index of 0 or more of a right answer; None is no flaw."""
    reward_B, batch = rewards(outcomes, flaws)
    found = stages(fapo(), batch.set(reward_B=reward_B))["advantage_B"]
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_the_sign_of_a_flawed_answer_turns_where_sound_ones_are_the_majority():
    """q = sound / wrong > 2 / penalty - 1; at 1 for the default."""
    for sound, wrong, sign in ((2, 3, 1), (3, 2, -1)):
        reward_B, batch = rewards([1.0] * (sound + 1) + [0.0] * wrong, [-1] * sound + [4] +
                                  [-1] * wrong)  # fmt: skip
        found = stages(fapo(), batch.set(reward_B=reward_B))["advantage_B"][sound]
        assert float(found.sign()) == sign


def test_a_judge_that_is_a_reward_function_and_one_that_is_missing():
    batch = flat_batch((1,) * 3, outcome_B=[1.0, 1.0, 0.0], reward_B=[1.0, 1.0, -1.0],
                       rollout_uid_B=[0, 1, 2], reward_BM=[[1.0, 2.0], [1.0, float("nan")],
                                                           [0.0, 1.0]])  # fmt: skip
    services = FakeServices(grading=FakeGrading(reward_names=("right", "flaw")))
    found = run(PenaliseFlawedAnswers(0.5), batch, services=services).value
    assert found.tolist() == [0.5, 1.0, -1.0]
    with pytest.raises(UserError, match=r"no reward function is called flaw or logs it"):
        run(PenaliseFlawedAnswers(), batch, services=FakeServices())


def test_without_a_penalty_it_is_the_parent_on_rewards_of_both_signs():
    reward_B, batch = rewards([1.0, 1, 0, 0], [2, 2, -1, -1], penalty=0.0)
    ours = stages(fapo(), batch.set(reward_B=reward_B))
    plain = stages(dapo(), batch.set(reward_B=batch["outcome_B"]))
    torch.testing.assert_close(ours["advantage_B"], plain["advantage_B"], rtol=1e-5, atol=1e-5)


def test_a_run_takes_the_judge_from_what_a_reward_logs(tmp_path):
    lab = Lab.make(tmp_path)
    lab.rewards.write_text(lab.rewards.read_text(encoding="utf-8") + JUDGED, encoding="utf-8")
    raw = lab.raw("fapo(overlong_factor=0)", reward="judged", training={"save_every": 0})
    runner = Runner()
    runner.go(runner.start(raw, tmp_path / "run"))
    assert any(-1 < line["reward"] < 1 for line in read_metrics(tmp_path / "run"))


def test_a_judge_is_trained_by_its_reward_and_then_frozen_in_the_policys_run(tmp_path):
    """One that has learnt to say 0, whatever it reads: so every right answer has a flaw."""
    lab, runner = Lab.make(tmp_path), Runner()
    flawed = [row for row in rows("validation", 60) if row["first_error"] == 0]
    data = tmp_path / "judged.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in flawed), encoding="utf-8")

    def go(name, model, steps, **sections):
        training = {"steps": steps, "save_every": steps, "rollouts_every": 0, "lr": 1e-2}
        raw = lab.raw() | {"model": {"name": str(model)}} | sections
        raw["training"] = {**raw["training"], **training}
        runner.go(runner.start(raw, tmp_path / name))
        return tmp_path / name / f"checkpoints/step-{steps:06d}"

    judged = {"files": [str(data)], "validation_size": 0}
    four = {"sampling.num_prompts": 4}
    warm = go("warm", lab.model, 12, recipe="sft", data=judged, reward={}, algorithm=four)
    verdict = {"functions": ["strop.rewards.first_error:verdict"]}
    judge = go("judge", warm, 1, data=judged, reward=verdict)
    assert read_metrics(tmp_path / "judge")[-1]["judge/frac_right"] == 1
    functions = [f"{lab.rewards}:even", f'strop.rewards.first_error:flaw(model="{judge}")']
    before = (judge / "model.safetensors").read_bytes()
    go("policy", lab.model, 1, recipe="fapo(overlong_factor=0)",
       reward={"functions": functions, "weights": [1, 0]})  # fmt: skip
    last = read_metrics(tmp_path / "policy")[-1]
    assert last["flaws/frac_right"] == 1
    assert last["rewards/flaw/mean"] == 0
    assert 0 < last["rewards/even/mean"] < 1
    # wrong ones have -1, right ones 1 - 1
    assert last["reward"] == pytest.approx(last["rewards/even/mean"] - 1)
    assert (judge / "model.safetensors").read_bytes() == before


def test_the_share_of_right_answers_with_a_flaw_is_logged():
    outcomes, flaws = [1.0, 1.0, 1.0, 0.0], [-1, 3, None, 0]
    batch = flat_batch((1,) * 4, outcome_B=outcomes, reward_B=outcomes, rollout_uid_B=range(4),
                       reward_BM=[[o] for o in outcomes])  # fmt: skip
    log = FakeLog({"flaw": dict(enumerate(flaws))})
    services = FakeServices(grading=FakeGrading(reward_names=("right",)), log=log)
    told = run(PenaliseFlawedAnswers(), batch, services=services).metrics
    assert told == {"flaws/frac_right": pytest.approx(1 / 3)}
