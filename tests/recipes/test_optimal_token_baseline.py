import pytest
import torch
from builders import flat_batch, members_of, ragged_batch, run, stages, tokens_of

from strop import functional
from strop.parts.advantage.baseline.subtract_optimal_token_mean import SubtractOptimalTokenMean
from strop.recipes.dr_grpo import dr_grpo
from strop.recipes.optimal_token_baseline import (
    optimal_token_baseline,
    optimal_token_baseline_multi_turn,
)

BOTH = ("optimal_token_baseline", "optimal_token_baseline_multi_turn")
PROBABILITY = torch.tensor([[0.9, 0.5], [0.5, 0.5]]).double()
SQUARES = torch.tensor([[0.82, 0.5], [0.5, 0.5]]).double()
REWARDS = torch.tensor([1.0, 0.0]).double()


def call(name, mask=None, rewards=REWARDS, columns=None, **params):
    given = {"logp_old": PROBABILITY.log(), "sum_pi_squared": SQUARES, **(columns or {})}
    groups = torch.zeros(len(rewards)).long()
    mask = torch.ones_like(given["logp_old"]) if mask is None else mask
    return functional.advantages(
        name, rewards=rewards, groups=groups, mask=mask, params=params, **given
    )


@pytest.mark.parametrize("name", BOTH)
def test_worked_example(name):
    # w = [[.02, .5], [.5, .5]], W = [[.02, .52], [.5, 1]], b = (.02 / .52, .52 / 1.52)
    expected = [[0.9615, 0.6579], [-0.0385, -0.3421]]
    torch.testing.assert_close(call(name), torch.tensor(expected).double(), atol=5e-5, rtol=0)
    damped = call(name, eps=0.5)
    assert damped[0].tolist() == pytest.approx([1 - 0.02 / 1.02, 1 - 0.52 / 2.02])
    # weights of 2 on the first rollout: W = [[.08, 2.08], [.5, 1]]
    weights = torch.tensor([[2.0, 2.0], [1.0, 1.0]]).double()
    found = call(name, columns={"rollout_is_weights": weights})
    assert found[0].tolist() == pytest.approx([1 - 0.08 / 0.58, 1 - 2.08 / 3.08])


def slow_loop(batch, counted, tail, eps=1e-8):
    """Advantages by dictionaries: token -> place, then a mean for every (group, place)."""
    weight, place = {}, {}
    for i in range(batch.size("B")):
        rows = tokens_of(batch, i)
        total = 0.0
        for n, t in enumerate(rows):
            total += (
                1
                - 2 * float(batch["logp_old_T"][t].exp())
                + float(batch["sum_pi_squared_old_T"][t])
            )
            weight[t] = total
            place[t] = n if counted == "policy" else t - rows[0]
    found = torch.zeros(batch.size("T"), dtype=torch.float64)
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        reward = {t: float(batch["reward_B"][i]) for i in members for t in tokens_of(batch, i)}
        for t, own in reward.items():
            peers = [s for s in reward if place[s] == place[t]]
            mean = sum(weight[s] * reward[s] for s in peers)
            mean /= sum(weight[s] for s in peers) + eps
            if len(members) == 1 or (tail and len(peers) == 1):
                mean = 0.0
            found[t] = own - mean
    return found


@pytest.mark.parametrize("tail", [True, False])
@pytest.mark.parametrize("turns", [(1, 1), (1, 3)])
def test_matches_slow_loop(turns, tail):
    batch = ragged_batch(2, groups=(4, 1, 3, 5), num_turns=turns)
    norm_T = torch.rand(batch.size("T"), generator=torch.Generator().manual_seed(0)).double()
    squares_T = batch["logp_old_T"].exp() ** 2 * (1 + norm_T)
    batch = batch.set(sum_pi_squared_old_T=squares_T)
    single = stages(optimal_token_baseline(handle_zero_tail=tail), batch)["advantage_T"]
    multi = stages(optimal_token_baseline_multi_turn(handle_zero_tail=tail), batch)["advantage_T"]
    torch.testing.assert_close(single, slow_loop(batch, "any", tail))
    torch.testing.assert_close(multi, slow_loop(batch, "policy", tail))
    assert torch.allclose(single, multi) == (turns == (1, 1))


def test_equal_weights_and_lengths_give_dr_grpo():
    batch = flat_batch((3,) * 5, groups=(0, 0, 0, 1, 1), reward_B=[0.3, 0.9, 0.1, 2.0, -1.0])
    batch = batch.set(
        logp_old_T=torch.full((15,), 0.5).double().log(),
        sum_pi_squared_old_T=torch.full((15,), 0.5).double(),
    )
    ours = stages(optimal_token_baseline(eps=0.0), batch)["advantage_T"]
    torch.testing.assert_close(ours, stages(dr_grpo(), batch)["advantage_T"])


@pytest.mark.parametrize("name", BOTH)
def test_the_longest_alone_and_a_group_of_one(name):
    mask = torch.tensor([[True, True], [True, False]])
    assert float(call(name, mask)[0, 1]) == 1.0
    kept = call(name, mask, handle_zero_tail=False)
    assert float(kept[0, 1]) == pytest.approx(0, abs=1e-7)  # its own return is the mean
    columns = {"logp_old": PROBABILITY[:1].log(), "sum_pi_squared": SQUARES[:1]}
    for tail in (True, False):
        alone = call(name, rewards=REWARDS[:1], columns=columns, handle_zero_tail=tail)
        assert alone.tolist() == [[1.0, 1.0]]
    unscored = torch.tensor([1.0, float("nan")]).double()
    assert call(name, rewards=unscored).tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_environment_tokens_take_no_place_in_several_turns():
    mask = torch.tensor([[True, False, True], [True, True, False]])
    columns = {
        "logp_old": torch.full((2, 3), 0.5).double().log(),
        "sum_pi_squared": torch.full((2, 3), 0.5).double(),
    }
    # the second own tokens stand at 2 and at 1: compared only by the form for several turns
    one = call(BOTH[0], mask, columns=columns)
    several = call(BOTH[1], mask, columns=columns)
    assert one[0].tolist() == pytest.approx([0.5, 0, 1.0])
    assert one[1].tolist() == pytest.approx([-0.5, 0, 0])
    assert several[0].tolist() == pytest.approx([0.5, 0, 0.5])
    assert several[1].tolist() == pytest.approx([-0.5, -0.5, 0])


def test_how_far_the_baselines_lie_from_plain_means_is_logged():
    # .02 / .52 and .52 / 1.52 beside 1/2; the third token of rollout 1 has no peer
    batch = flat_batch(
        (2, 3), advantage_T=[1.0, 1.0, 0.0, 0.0, 0.0],
        logp_old_T=torch.tensor([0.9, 0.5, 0.5, 0.5, 0.5]).double().log(),
        sum_pi_squared_old_T=[0.82, 0.5, 0.5, 0.5, 0.5],
    )  # fmt: skip
    shift = (abs(0.02 / 0.52 - 0.5) + abs(0.52 / 1.52 - 0.5)) / 2
    told = run(SubtractOptimalTokenMean(), batch).metrics
    assert told == {"advantage/baseline_shift": pytest.approx(shift)}
