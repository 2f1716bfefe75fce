"""Generalised advantages: the card's numbers, a slow loop, reductions, truncation."""

import pytest
import torch
from builders import f64, flat_batch, ragged_batch, run, tokens_of
from hypothesis import given, settings
from hypothesis import strategies as st

from strop import functional
from strop.parts.advantage.credit.discount_from_end import DiscountFromEnd
from strop.parts.advantage.credit.estimate_generalised_advantage import EstimateGeneralisedAdvantage
from strop.support.errors import UserError

VALUES = [0.2, 0.4, 0.6]


def estimated(batch, **fields):
    return run(EstimateGeneralisedAdvantage(**fields), batch).value


def test_worked_example():
    # delta = (0.2, 0.2, 0.4); A_3 = 0.4, A_2 = 0.2 + 0.95 * 0.4, A_1 = 0.2 + 0.95 * 0.58
    batch = flat_batch([3], value_T=VALUES, reward_T=[0.0, 0, 1])
    advantage_T, return_T = estimated(batch, lam=0.95)
    assert advantage_T.tolist() == pytest.approx([0.751, 0.58, 0.4])
    assert return_T.tolist() == pytest.approx([0.951, 0.98, 1.0])


def test_the_outcome_stands_on_the_last_policy_token():
    batch = flat_batch([3], value_T=VALUES, advantage_B=[1.0])
    assert estimated(batch, lam=0.95)[0].tolist() == pytest.approx([0.751, 0.58, 0.4])


def test_worked_example_through_the_padded_call():
    # whitened: mean 0.577, variance 0.0308 (n - 1); a prompt token and padding change nothing
    tokens = {"token_rewards": f64(9, 0, 0, 1, 9)[None], "values": f64(9, *VALUES, 9)[None]}
    mask = torch.tensor([[0, 1, 1, 1, 0]])
    params = {"lam": 0.95}
    groups = torch.tensor([4])
    found = functional.advantages("gae", **tokens, groups=groups, mask=mask, params=params)
    assert found.tolist() == [pytest.approx([0, 0.9913, 0.0171, -1.0084, 0], abs=5e-5)]
    outcome = {"rewards": f64(1), "values": tokens["values"]}
    same = functional.advantages("gae", **outcome, groups=groups, mask=mask, params=params)
    assert torch.allclose(same, found)
    with pytest.raises(UserError, match="needs token_rewards, or rewards"):
        functional.advantages("gae", values=tokens["values"], groups=groups, mask=mask)


def slow(batch, gamma, lam, bootstrap):
    """Token by token from the end, as the card has it."""
    advantage, returns = torch.zeros_like(batch["value_T"]), torch.zeros_like(batch["value_T"])
    for i in range(batch.size("B")):
        rows = tokens_of(batch, i)
        if not batch["scored_B"][i] or not rows:
            continue
        cut = bootstrap and bool(batch["truncated_B"][i])
        after = batch["value_T"][rows[-1]] if cut else 0.0
        last = 0.0
        for t in reversed(rows):
            reward = batch["advantage_B"][i] if t == rows[-1] else 0.0
            last = reward + gamma * after - batch["value_T"][t] + gamma * lam * last
            after = batch["value_T"][t]
            advantage[t], returns[t] = last, last + after
    return advantage, returns


@settings(max_examples=20)
@given(st.integers(0, 1000), st.floats(0, 1), st.floats(0, 1), st.booleans())
def test_equals_a_slow_loop_on_ragged_turns(seed, gamma, lam, bootstrap):
    batch = ragged_batch(seed, lengths=(1, 9), num_turns=(1, 3))
    found = estimated(batch, gamma=gamma, lam=lam, bootstrap_truncated=bootstrap)
    for one, other in zip(found, slow(batch, gamma, lam, bootstrap), strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


def test_no_values_and_lambda_1_is_the_discounted_reward_to_go():
    batch = ragged_batch(1)
    batch = batch.set(value_T=torch.zeros_like(batch["value_T"]))
    advantage_T, return_T = estimated(batch, gamma=0.9, lam=1.0)
    scored_T = batch["scored_B"][batch["rollout_T"]]
    expected = torch.where(scored_T, run(DiscountFromEnd(0.9), batch).value, 0)
    torch.testing.assert_close(advantage_T, expected)
    torch.testing.assert_close(return_T, expected)


def test_lambda_0_is_one_step_of_temporal_difference():
    batch = flat_batch([3], value_T=VALUES, reward_T=[0.5, 0, 1])
    advantage_T, _ = estimated(batch, gamma=0.5, lam=0.0)
    # 0.5 + 0.5 * 0.4 - 0.2, 0.5 * 0.6 - 0.4, 1 - 0.6
    assert advantage_T.tolist() == pytest.approx([0.5, -0.1, 0.4])


def test_tokens_of_an_environment_are_skipped():
    plain = flat_batch([3], value_T=VALUES, reward_T=[0.0, 0, 1])
    mask_T = torch.tensor([True, False, True, False, True])
    between = flat_batch([5], value_T=[0.2, 9, 0.4, 9, 0.6], reward_T=[0.0, 9, 0, 9, 1],
                         mask_T=mask_T)  # fmt: skip
    for one, other in zip(estimated(plain, lam=0.9), estimated(between, lam=0.9), strict=True):
        assert other[mask_T].equal(one)
        assert not other[~mask_T].any()


def test_a_rollout_that_was_cut_off_goes_on_as_valued():
    # the card of EGAE: the last delta is V - V = 0; as an end it would be -0.7
    batch = flat_batch([3], value_T=[0.5, 0.6, 0.7], advantage_B=[0.0], truncated_B=[True])
    going_on = estimated(batch, lam=0.95, bootstrap_truncated=True)[0]
    assert going_on.tolist() == pytest.approx([0.195, 0.1, 0.0])
    ended = estimated(batch, lam=0.95)[0]
    assert ended.tolist() == pytest.approx([-0.43675, -0.565, -0.7])
    finished = batch.set(truncated_B=torch.tensor([False]))
    assert estimated(finished, lam=0.95, bootstrap_truncated=True)[0].equal(ended)


def test_a_rollout_that_is_pending_has_earned_nothing():
    # V + 0 - V on its last token; the other one ended with 1 - 0.5
    batch = flat_batch([2, 2], value_T=[0.5] * 4, advantage_B=[1.0, 1.0])
    batch = batch.set(pending_B=torch.tensor([True, False]))
    assert estimated(batch, lam=0.0)[0].tolist() == [0, 0, 0, 0.5]


def test_what_is_beyond_a_cut_is_told():
    batch = flat_batch([1, 2, 1], value_T=[0.5, 0.6, 0.7, 0.1], advantage_B=[0.0] * 3,
                       truncated_B=[True, True, False])  # fmt: skip
    told = run(EstimateGeneralisedAdvantage(bootstrap_truncated=True), batch).metrics
    assert told == pytest.approx(
        {"bootstrap/frac_rollouts": 2 / 3, "bootstrap/value_mean": (0.5 + 0.7) / 2}
    )
    assert run(EstimateGeneralisedAdvantage(), batch).metrics == {}


def test_values_get_no_gradient_and_something_must_be_earned():
    batch = flat_batch([2], value_T=[0.5, 0.6], reward_T=[0.0, 1])
    values = batch["value_T"].requires_grad_()
    assert not estimated(batch.set(value_T=values))[0].requires_grad
    with pytest.raises(UserError, match="needs token_rewards, or rewards"):
        functional.advantages("gae", values=batch["value_T"][None])
    with pytest.raises(UserError, match="lam must be between 0"):
        EstimateGeneralisedAdvantage(lam=1.1)
