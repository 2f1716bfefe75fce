import statistics

import pytest
import torch
from builders import flat_batch, ragged_batch, run, stages

from strop import functional
from strop.parts.advantage.scale.damp_praise_while_weak import DampPraiseWhileWeak
from strop.parts.advantage.scale.shift_weight_to_hard_prompts import ShiftWeightToHardPrompts
from strop.recipes._base import average
from strop.recipes.a_grae import a_grae
from strop.recipes.grpo import grpo
from strop.support.errors import UserError

ZEROS = torch.zeros(4).long()


def call(rewards, groups=ZEROS, **params):
    rewards = torch.tensor(rewards).double()
    return functional.advantages("a_grae", rewards=rewards, groups=groups, params=params).tolist()


def test_worked_example():
    # p .25, omega .5 would need a second group: see below; here omega = p = .25
    # 1.5 / 2 (.25 / .5 + .75 / .8660) = 1.0245, times min(1, .25 / .5)
    found = call([1.0, 0.0, 0.0, 0.0], alpha=0.5)
    assert found == pytest.approx([0.5123, -0.3415, -0.3415, -0.3415], abs=5e-5)


@pytest.mark.parametrize(("alpha", "best"), [(1.0, 0.5915), (0.5, 1.183)])
def test_worked_example_at_omega_one_half(alpha, best):
    groups = torch.tensor([0] * 4 + [1] * 4)
    found = call([1.0, 0, 0, 0, 1.0, 1.0, 1.0, 0.0], groups, alpha=alpha)
    assert found[:4] == pytest.approx([best, -0.3943, -0.3943, -0.3943], abs=5e-5)


def test_released_code_form():
    groups = torch.tensor([0] * 4 + [1] * 4)
    found = call([1.0, 0, 0, 0, 1.0, 1.0, 1.0, 0.0], groups, variant="code")
    assert found[:4] == pytest.approx([0.75, -0.5, -0.5, -0.5], abs=1e-4)
    # of a large group that fails and a small one that succeeds the code's omega is 1 / 2
    rewards, groups = [1.0, 0.0, *[0.0] * 6], torch.tensor([0, 0, *[1] * 6])
    grpos = functional.advantages("grpo", rewards=torch.tensor(rewards).double(), groups=groups)
    p = 0.5**0.5
    factor = (0.25 / (p + 1e-6) + 0.75 / (1 - p + 1e-6)) / 2
    found = call(rewards, groups, variant="code")
    assert found[1] == pytest.approx(float(grpos[1]) * factor, rel=1e-9)
    assert found[0] == pytest.approx(float(grpos[0]) * factor * 0.25, rel=1e-9)


@pytest.mark.parametrize("normalize_std", [True, False])
def test_matches_slow_loop(normalize_std):
    batch = ragged_batch(4, groups=(4, 3, 5, 1))
    batch = batch.set(reward_B=batch["reward_B"].sigmoid())
    base = stages(grpo(normalize_std=normalize_std), batch)["advantage_B"]
    ours = stages(a_grae(alpha=0.7, normalize_std=normalize_std), batch)["advantage_B"]
    scored = [i for i in range(batch.size("B")) if batch["scored_B"][i]]
    rewards = {i: float(batch["reward_B"][i]) for i in scored}
    omega = statistics.fmean(rewards.values())
    for i in scored:
        mates = [rewards[j] for j in scored if batch["group_B"][j] == batch["group_B"][i]]
        p = statistics.fmean(mates)
        factor = (omega / p**0.5 + (1 - omega) / (1 - p) ** 0.5) / 2
        factor *= min(1, omega / 0.7) if float(base[i]) > 0 else 1
        assert float(ours[i]) == pytest.approx(float(base[i]) * factor)


def test_at_even_odds_the_first_step_is_one_factor():
    # p .5 in every group: .7071 whatever omega; omega .5 >= alpha leaves praise alone
    rewards, groups = [1.0, 0.0] * 4, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    base = functional.advantages("grpo", rewards=torch.tensor(rewards).double(), groups=groups)
    assert call(rewards, groups, alpha=0.5) == pytest.approx((base * 0.5**0.5).tolist())


def test_edges():
    batch = flat_batch((1,) * 4, groups=(0, 0, 1, 1), reward_B=[1.0, 1.0, 0.0, 0.0])
    assert not stages(a_grae(), batch)["advantage_T"].any()
    for rewards in ([1.5, 0, 0, 0], [-1.0, 1.0, 1.0, 1.0]):
        with pytest.raises(UserError, match="between 0 and 1"):
            call(rewards)
    unscored = call([float("nan"), 1.0, 0.0, 0.0])
    assert unscored[0] == 0
    assert unscored[1:] == pytest.approx(call([1.0, 0.0, 0.0], ZEROS[:3]))
    with pytest.raises(UserError, match="alpha"):
        a_grae(alpha=1.5)


def test_its_average_is_the_released_codes():
    assert a_grae().terms[0].average == average("token-mean")


def test_factors_of_praise_and_of_hard_and_easy_prompts_are_logged():
    hard = flat_batch((1,) * 4, advantage_B=[1.5, -0.5, -0.5, -0.5], reward_B=[1.0, 0.0, 0.0, 0.0])
    assert run(DampPraiseWhileWeak(alpha=0.5), hard).metrics == {"advantage/praise_factor": 0.5}
    told = run(ShiftWeightToHardPrompts(), hard).metrics
    factor = (0.25 / 0.5 + 0.75 / 0.75**0.5) / 2
    assert told == {"advantage/factor_hard": pytest.approx(factor)}
    both = flat_batch((1,) * 4, (0, 0, 1, 1), advantage_B=[1.0, -1.0, 0.0, 0.0],
                      reward_B=[1.0, 0.0, 1.0, 1.0])  # fmt: skip
    told = run(ShiftWeightToHardPrompts(), both).metrics  # half right, and never wrong
    assert told == dict.fromkeys(told, pytest.approx(0.5**0.5))
    assert told.keys() == {"advantage/factor_hard", "advantage/factor_easy"}
