import math

import pytest
import torch
from builders import flat_batch, run
from models import Lab
from runs import Runner

from strop import functional
from strop.method.check import check
from strop.parts.advantage.baseline.compare_budgets import CompareBudgets
from strop.recipes.hbpo import hbpo
from strop.support.errors import UserError
from strop.training.step import train_step

GIVEN = {
    "rewards": torch.tensor([1.0, 1, 1, 0]).double(),
    "correct": torch.tensor([True, True, True, False]),
    "budgets": torch.tensor([512, 512, 2048, 2048]),
    "lengths": torch.tensor([400, 800, 1500, 3000]),
    "groups": torch.zeros(4, dtype=torch.int64),
}


def test_worked_example_through_the_padded_call():
    found = functional.advantages("hbpo", **GIVEN, params={"L": 4096})
    expected = [0.626447, 0.527067, -1.301282, -2.860889]
    assert found.tolist() == pytest.approx(expected, abs=1e-5)
    without = {k: v for k, v in GIVEN.items() if k != "correct"}  # a reward above 0 is right
    assert functional.advantages("hbpo", **without, params={"L": 4096}).equal(found)


@pytest.mark.parametrize(
    ("budget", "reward"), [(512, 3.923141), (1024, 3.695518), (2048, 2.828427), (2560, 2.222281)]
)
def test_rewards_of_the_worked_example(budget, reward):
    """Alone in its group and its budget the second term is the reward, the first R - f2 = 0."""
    batch = flat_batch((1,), advantage_B=[1.0], budget_B=[budget], length_B=[3])
    found = run(CompareBudgets(4096, eps=0.0), batch).value
    assert float(found) == pytest.approx(reward, abs=1e-6)


def test_the_released_form_pays_short_answers_less_and_counts_the_budget_twice():
    """b = 512, n = 0: 3.875 in place of 3.923141."""
    batch = flat_batch((1,), advantage_B=[1.0], budget_B=[512], length_B=[0])
    found = run(CompareBudgets(4096, eps=0.0, source_form="code"), batch).value
    assert float(found) == pytest.approx(3.875 + 2 * (3.875 - 3.923141), abs=1e-5)


def test_matches_a_slow_loop():
    rng = torch.Generator().manual_seed(0)
    num, L = 24, 100
    budgets = torch.tensor([20, 50, 90])[torch.randint(0, 3, (num,), generator=rng)]
    lengths = torch.randint(1, 120, (num,), generator=rng)
    rewards = (torch.rand(num, generator=rng) < 0.6).double()
    rewards[3], rewards[7] = torch.nan, -1.0
    groups = torch.arange(num) % 3
    found = functional.advantages("hbpo", rewards=rewards, budgets=budgets, lengths=lengths,
                                  groups=groups,
                                  params={"L": L, "beta": 2.0, "eps": 0.1})  # fmt: skip

    def cosine(x):
        return 2.0 * math.cos(math.pi * x / (2 * L))

    def paid(i):
        n, b = int(lengths[i]), int(budgets[i])
        if rewards[i] < 0:
            return -1.0
        if rewards[i] == 0 or n > L:
            return 0.0
        return cosine(n) - abs(n - b) / L if n > b else cosine(b)

    for i in range(num):
        if i == 3:
            assert found[i] == 0
            continue
        peers = [j for j in range(num) if groups[j] == groups[i] and j != 3]
        rs = torch.tensor([paid(j) for j in peers], dtype=torch.float64)
        same = [paid(j) for j in peers if budgets[j] == budgets[i]]
        within = sum(same) / len(same) - cosine(int(budgets[i]))
        expected = within + (paid(i) - rs.mean()) / (rs.std() + 0.1)
        assert float(found[i]) == pytest.approx(float(expected), rel=1e-9)


def test_composes():
    check(hbpo(budgets=(512, 1024, 2048, 2560), L=4096, prefix="{budget}:"))
    with pytest.raises(UserError, match="budgets must be numbers above 0"):
        hbpo(budgets=(0,))
    with pytest.raises(UserError, match="whole tokens or shares"):
        hbpo(budgets=(2.5,))


def test_budgets_and_length_follow_the_longest_answer():
    """The paper's at its 4096 tokens; 12 tokens: 1.5, 3, 6 and 7.5, a half to the even one."""
    part = hbpo().rollout.part
    assert part.tokens(4096) == (512, 1024, 2048, 2560)
    assert part.tokens(12) == (2, 3, 6, 8)
    assert part.tokens(2) == (1, 1, 1, 1)
    assert hbpo(budgets=(512, 0.5)).rollout.part.tokens(12) == (512, 6)
    batch = flat_batch((1,), advantage_B=[1.0], budget_B=[3], length_B=[3])
    found = run(CompareBudgets(eps=0.0), batch.set(max_length=torch.tensor(12))).value
    assert float(found) == pytest.approx(4 * math.cos(math.pi / 8))  # 3 of 12 is 1024 of 4096
    with pytest.raises(UserError, match="budget of 2048 tokens is above the longest answer, 1"):
        functional.advantages("hbpo", **GIVEN)
    mixed = flat_batch((1, 1), advantage_B=[1.0, 1.0], budget_B=[3, 13], max_length=12)
    with pytest.raises(UserError, match="budget of 13 tokens is above the longest answer, 12"):
        run(CompareBudgets(), mixed)


def test_a_run_under_budgets(tmp_path):
    """Every budget is tried; its text stands before the answer, is trained on and not scored."""
    lab = Lab.make(tmp_path)
    raw = lab.raw(
        "hbpo(budgets=[2, 5], L=8, prefix='{budget}:')",
        reward="even", training={"save_every": 0, "steps": 2},
    )  # fmt: skip
    runner = Runner()
    run_ = runner.start(raw, tmp_path / "run")
    batch = train_step(run_.world, run_.algorithm, {}, 1).batch
    run_.close()
    assert batch["budget_B"].tolist() == [2, 5] * 4
    tokenizer = run_.loaded.tokenizer
    for i in range(batch.size("B")):
        own = (batch["rollout_T"] == i) & batch["mask_T"]
        text = tokenizer.decode(batch["id_T"][own])
        assert text.startswith(f"{int(batch['budget_B'][i])}:")
        assert int(batch["length_B"][i]) == int(own.sum()) <= 6
        digits = sum(c.isdigit() for c in tokenizer.decode(batch["id_T"][own][2:]))
        assert float(batch["outcome_B"][i]) == (digits % 2 == 0)
        assert batch["logp_behavior_T"][own].isnan().tolist()[:3] == [True, True, False]
    raw["algorithm"]["rollout.max_tokens"] = 2
    late = runner.start({**raw}, tmp_path / "late")
    with pytest.raises(UserError, match="prefix of the budget 2 has 2 tokens"):
        train_step(late.world, late.algorithm, {}, 1)
    late.close()


def test_answers_over_their_budget_and_what_is_paid_by_it_are_logged():
    # 2 of 4: f2(4); 5 of 4: f1(5, 4); 3 of 2, but wrong: 0
    batch = flat_batch((2, 5, 3), advantage_B=[1.0, 1.0, 0.0], budget_B=[4, 4, 2])
    told = run(CompareBudgets(L=8), batch).metrics
    paid = 4 * math.cos(math.pi / 4) + 4 * math.cos(math.pi * 5 / 16) - 1 / 8
    assert told["length_budget/frac_over"] == pytest.approx(2 / 3)
    assert told["length_budget/reward"] == pytest.approx(paid / 3)
