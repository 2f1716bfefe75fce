import json

import pytest
import torch
from builders import flat_batch, pushed, ragged_batch, stages
from models import Lab
from runs import Runner

from strop import functional
from strop.method import notation
from strop.method.check import check
from strop.recipes.grpo import grpo
from strop.recipes.r3_replay_reflection_ranking import r3_replay_reflection_ranking

NAME = "r3_replay_reflection_ranking"


@pytest.mark.parametrize(("alpha", "divisor"), [(1.0, 1.0), (2.0, 2.0)])
def test_worked_example(alpha, divisor):
    """Four failures and the right rollout that came back."""
    given = functional.advantages(
        NAME, rewards=torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0]).double(),
        groups=torch.zeros(5).long(), mask=torch.ones(5, 1), params={"alpha": alpha},
    )[:, 0]  # fmt: skip
    expected = [x / divisor for x in (-0.4472, -0.4472, -0.4472, -0.4472, 1.7889)]
    assert given.tolist() == pytest.approx(expected, abs=1e-4)


def test_without_its_own_it_is_grpo():
    """No history, no ranking, no length, alpha 1 and lambda_ eps: the same parts."""
    ours = r3_replay_reflection_ranking(
        k=0, tau=0.0, R_max=0.0, length=0, lambda_=1e-6, of_sampler=False
    )
    assert ours == grpo()
    assert r3_replay_reflection_ranking() != grpo()


def test_ratio_is_to_the_policy_that_drew_the_token():
    batch = stages(grpo(), ragged_batch(4, groups=(3, 4)))
    ours, theirs = r3_replay_reflection_ranking(), grpo()
    same = batch.set(logp_sampler_T=batch["logp_old_T"])
    torch.testing.assert_close(pushed(ours, same)[1]["logp_T"], pushed(theirs, same)[1]["logp_T"])
    drawn = batch.set(logp_sampler_T=batch["logp_T"])
    moved = pushed(ours, drawn)[1]["logp_T"]
    fresh = pushed(theirs, batch.set(logp_old_T=batch["logp_T"]))[1]["logp_T"]
    torch.testing.assert_close(moved, fresh)


def test_groups_of_one_outcome_learn_nothing_alone():
    batch = stages(r3_replay_reflection_ranking(), flat_batch((1,) * 4, reward_B=[1.0] * 4))
    assert not batch["advantage_T"].any()


def test_composes_from_its_text():
    algorithm = notation.recipe(f"{NAME}(words='{{prompt}} not {{answer}}: {{prompt}}')")
    check(algorithm)
    assert algorithm.curation[0].part.words == "{prompt} not {answer}: {prompt}"


SOMETIMES = '''
def sometimes(prompts, completions, **columns):
    """1 where exactly two digits were written: rare at first."""
    return [float(sum(c.isdigit() for c in text) == 2) for text in completions]
'''


def test_history_comes_back_in_training(tmp_path):
    lab = Lab.make(tmp_path)
    lab.rewards.write_text(SOMETIMES, encoding="utf-8")
    rows = [{"prompt": f"{n}+1:", "answer": str(n)} for n in range(4)]
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    raw = lab.raw(
        f"{NAME}(tau=0.3, beta=0.05)", reward="sometimes", data={"validation_size": 0},
        training={"steps": 10, "save_every": 0},
    )  # fmt: skip
    raw["algorithm"]["sampling.num_prompts"] = 4
    seen = [m for m in Runner().go(Runner().start(raw, tmp_path / "run")).seen if "loss" in m]
    assert seen[0]["retry/groups"] == seen[0]["replay/drawn"] == 0
    assert any(m["retry/groups"] > 0 for m in seen)
    assert any(m["replay/drawn"] > 0 for m in seen)
    for m in seen:
        assert m["num_rollouts"] == 4 * (4 + m["retry/groups"]) + m["replay/drawn"]
        assert m["data/rollouts_sampled"] == 4 * (4 + m["retry/groups"])
        assert all(value == value for value in m.values())
