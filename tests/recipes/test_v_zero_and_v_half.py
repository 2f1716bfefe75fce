import pytest
import torch
from builders import flat_batch, ragged_batch, run, stages
from hypothesis import given
from hypothesis import strategies as st

from strop import functional
from strop.method import reading
from strop.method.check import check
from strop.method.part import Draw
from strop.parts.advantage.baseline.shrink_mean_to_prior import ShrinkMeanToPrior
from strop.parts.curation.ask_while_uncertain import AskWhileUncertain, one_more_pays
from strop.parts.sampling import allocate_by_failures
from strop.parts.sampling.allocate_by_failures import (
    AllocateByFailures,
    allocate,
    expected_failures,
)
from strop.recipes.dr_grpo import dr_grpo
from strop.recipes.v_half import v_half
from strop.recipes.v_zero import v_zero
from strop.support.errors import UserError


@pytest.mark.parametrize(
    ("p", "expected"),
    [(0.05, [0.095, 0.542, 2.293, 8.158]), (0.5, [0.5, 1.75, 3.969, 8.0]),
     (0.9, [0.18, 0.4, 0.8, 1.6])],
)  # fmt: skip
def test_worked_example_of_the_budget(p, expected):
    found = [expected_failures(num, p) for num in (2, 4, 8, 16)]
    assert found == pytest.approx(expected, abs=6e-4)


def test_greedy_allocation():
    assert allocate([0.05, 0.5, 0.95], 24, 2, 128) == [2, 20, 2]
    assert allocate([0.9] * 3, 12, 2, 128) == [4, 4, 4]
    assert allocate([0.4] * 3, 12, 2, 128) == [7, 3, 2]  # where U is convex it goes to one
    assert allocate([0.5, 0.5], 20, 2, 4) == [4, 4]  # no more than most
    draws = tuple(Draw(uid, 8, {"prior_B": p}) for uid, p in enumerate((0.05, 0.5, 0.95)))
    result = AllocateByFailures()(draws)
    assert [draw.num_rollouts for draw in result.value] == [2, 20, 2]
    assert result.value[1].why == "20 rollouts at an expected success of 0.50"
    assert result.metrics == {"budget/least": 2.0, "budget/most": 20.0}
    single = tuple(Draw(uid, 1, {"prior_B": 0.5}) for uid in range(3))
    assert [d.num_rollouts for d in AllocateByFailures()(single).value] == [1, 1, 1]


def test_a_rollout_is_allocated_without_a_look_at_every_prompt(monkeypatch):
    looks = []

    def counted(num, p):
        looks.append(num)
        return expected_failures(num, p)

    monkeypatch.setattr(allocate_by_failures, "expected_failures", counted)
    sizes = allocate([place / 200 for place in range(200)], 1600, 2, 128)
    assert sum(sizes) == 1600
    assert len(looks) <= 2 * (200 + 1600)


@given(
    st.lists(st.sampled_from((0.0, 0.1, 0.3, 0.5, 1.0)), min_size=1, max_size=5),
    st.integers(0, 30), st.integers(0, 3), st.integers(3, 9),
)  # fmt: skip
def test_each_rollout_goes_where_it_gains_most(priors, total, least, most):
    wanted = [least] * len(priors)
    for _ in range(total - sum(wanted)):
        free = [place for place, size in enumerate(wanted) if size < most]
        if not free:
            break
        gains = {
            n: expected_failures(wanted[n] + 1, priors[n]) - expected_failures(wanted[n], priors[n])
            for n in free
        }
        wanted[max(free, key=gains.__getitem__)] += 1
    assert allocate(priors, total, least, most) == wanted
    with pytest.raises(UserError, match="predict_success_from_history"):
        AllocateByFailures()((Draw(1, 4),))


@given(p=st.floats(0.01, 0.99), num=st.integers(2, 9))
def test_u_is_the_expected_number_of_failures_of_a_mixed_group(p, num):
    from math import comb

    chance = [comb(num, k) * p**k * (1 - p) ** (num - k) for k in range(num + 1)]
    expected = sum(chance[k] * (num - k) for k in range(1, num))
    assert expected_failures(num, p) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rewards", "prior", "baseline"),
    # in -1..1: v = 0, V = .2: D2 0; v = 1, V = -.2: D2 1.19, w .8264; v = -1, V = .6: 2.31, .9023
    [([1.0, 1, 0, 0], 0.6, 0.2), ([1.0] * 4, 0.4, 0.7917), ([0.0] * 4, 0.8, -0.8438)],
)
def test_worked_example_of_the_baseline(rewards, prior, baseline):
    given = {
        "rewards": torch.tensor(rewards).double(), "groups": torch.zeros(4).long(),
        "prior": torch.full((4,), prior).double(),
    }  # fmt: skip
    found = functional.advantages("v_half", **given)
    expected = [2 * r - 1 - baseline for r in rewards]
    assert found.tolist() == pytest.approx(expected, abs=6e-5)


def test_far_from_the_prior_it_is_the_group_mean():
    batch = ragged_batch(1, groups=(300,), unscored=()).set(
        prior_B=torch.full((300,), 1e9).double()
    )
    batch = batch.set(reward_B=(batch["reward_B"] > 0.5).double())
    ours = stages(v_half(), batch)["advantage_B"]
    theirs = stages(dr_grpo(), batch)["advantage_B"]
    torch.testing.assert_close(ours, 2 * theirs, atol=1e-6, rtol=1e-6)
    near = flat_batch((1,) * 3, advantage_B=[1.0, 1, 0], prior_B=[2 / 3] * 3)
    found = run(ShrinkMeanToPrior(), near)
    assert found.value.tolist() == pytest.approx([2 / 3, 2 / 3, -4 / 3])
    assert found.metrics["prior/trust"] == 1.0
    # a second group, all right where V = -.2: w = 1.19 / 1.44
    both = flat_batch(
        (1,) * 7, [0] * 3 + [1] * 4, advantage_B=[1.0, 1, 0, 1, 1, 1, 1],
        prior_B=[2 / 3] * 3 + [0.4] * 4,
    )  # fmt: skip
    trust = run(ShrinkMeanToPrior(), both).metrics["prior/trust"]
    assert trust == pytest.approx((1 + 0.25 / 1.44) / 2)


def sizes_at(squared, cost=0.0039):
    """Rollouts at which the look-ahead stops for a fixed D2."""
    for k in range(4, 17):
        far = torch.tensor([(squared + 1 / k) ** 0.5]).double()
        if not bool(one_more_pays(far, torch.zeros(1), torch.tensor([k]), cost, 16)):
            return k
    raise AssertionError("asks for more than 16")


def test_worked_example_of_the_look_ahead():
    assert [sizes_at(d) for d in (0.0, 0.05, 0.25, 1.0, 1e9)] == [4, 4, 12, 15, 16]


def test_asks_for_one_more_of_the_groups_that_surprise():
    outcome = [1.0, 1, 1, 1, 0, 1, 0, 1]
    batch = flat_batch(
        (1,) * 8, [0] * 4 + [1] * 4, outcome_B=outcome, prior_B=[0.1] * 4 + [0.5] * 4
    )
    batch = batch.set(uid_P=torch.tensor([31, 32]), draw_P=torch.tensor([2, 0]))
    asked = run(AskWhileUncertain(), batch)
    assert [(d.uid, d.num_rollouts, d.draw) for d in asked.value.ask] == [(31, 1, 2)]
    assert asked.value.ask[0].columns["prior_B"] == pytest.approx(0.1)
    assert asked.value.keep_B.all()
    assert run(AskWhileUncertain(most=4), batch).value.ask == ()
    assert run(AskWhileUncertain(cost=1.0), batch).value.ask == ()
    unscored = batch.set(scored_B=torch.zeros(8, dtype=torch.bool))
    assert run(AskWhileUncertain(), unscored).value.ask == ()


def test_recipes_compose_and_refuse_what_would_switch_them_off():
    with pytest.raises(UserError, match="do not go together"):
        check(reading.replace_stage(v_half(), "curation", "drop_uniform_groups"))
    for field, value in (("context", 0), ("bandwidth", 0.0)):
        with pytest.raises(UserError, match=field):
            v_zero(**{field: value})
    with pytest.raises(UserError, match="most"):
        AllocateByFailures(least=4, most=3)
