import statistics

import pytest
import torch
from builders import flat_batch, members_of, ragged_batch, run, stages

from strop import functional
from strop.parts.advantage.scale.favour_groups_with_long_successes import (
    FavourGroupsWithLongSuccesses,
)
from strop.recipes.adora import adora
from strop.recipes.grpo import grpo
from strop.support.errors import UserError


def call(rewards, lengths, **params):
    rewards, groups = torch.tensor(rewards).double(), torch.zeros(len(rewards)).long()
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    found = functional.advantages("adora", rewards=rewards, groups=groups, mask=mask, params=params)
    given = functional.advantages(
        "adora", rewards=rewards, groups=groups, lengths=torch.tensor(lengths), params=params
    )
    assert given.tolist() == found[:, 0].tolist()
    return found[:, 0].tolist()


def test_worked_example():
    # longest right 3 <= mean wrong 4.5: times .1; 6 > 4.5: as it was
    small = call([1.0, 0.0, 0.0, 1.0], [2, 5, 4, 3])
    assert small == pytest.approx([0.0866, -0.0866, -0.0866, 0.0866], abs=5e-5)
    whole = call([1.0, 0.0, 0.0, 1.0], [2, 5, 4, 6])
    assert whole == pytest.approx([0.866, -0.866, -0.866, 0.866], abs=5e-5)
    twice = call([1.0, 0.0, 0.0, 1.0], [2, 5, 4, 6], amplification=2.0, lam=1.0)
    assert twice == pytest.approx([2 * value for value in whole])


def test_answers_that_were_cut_off_are_left_out():
    rewards, lengths = [1.0, 0.0, 0.0, 1.0], [2, 20, 4, 6]
    assert abs(call(rewards, lengths)[0]) < 0.1
    assert call(rewards, lengths, max_len=20)[0] == pytest.approx(0.866, abs=5e-5)


@pytest.mark.parametrize("variant", ["text", "vision"])
def test_both_folders_leave_out_answers_that_were_cut_off(variant):
    # longest right 9 > 5, the one wrong answer that ended
    found = call([1.0, 0.0, 0.0, 1.0], [9, 4094, 5, 3], variant=variant, max_len=4094)
    assert found == pytest.approx([0.866, -0.866, -0.866, 0.866], abs=5e-5)


def test_prompts_of_one_kind_in_the_two_folders():
    # equal rewards have no advantage: rewards within a kind differ here
    right, wrong, lengths = [1.0, 0.9, 0.8], [0.2, 0.1, 0.0], [2, 3, 4]
    for rewards, text in ((right, 1.0), (wrong, 0.1)):
        base = call(rewards, lengths, lam=1.0)
        ours = call(rewards, lengths)
        assert ours == pytest.approx([text * value for value in base])
        theirs = call(rewards, lengths, variant="vision")
        assert theirs == pytest.approx([(1.1 - text) * value for value in base])


def test_the_papers_difficulty_criterion():
    rewards, lengths = [1.0, 1.0, 1.0, 0.0], [2, 5, 4, 3]
    assert call(rewards, lengths)[3] == pytest.approx(-1.5, abs=1e-5)
    assert call(rewards, lengths, tau=0.5)[3] == pytest.approx(-0.15, abs=1e-5)
    assert call(rewards, lengths, tau=0.75)[3] == pytest.approx(-1.5, abs=1e-5)


def test_with_factor_one_it_is_grpo():
    batch = ragged_batch(6)
    ours, theirs = stages(adora(lam=1.0), batch), stages(grpo(beta=1e-3), batch)
    assert ours["advantage_T"].equal(theirs["advantage_T"])
    assert adora(lam=1.0).terms == grpo(beta=1e-3).terms


def test_matches_slow_loop():
    batch = ragged_batch(7, groups=(4, 3, 6, 1, 5, 4))
    base, ours = stages(grpo(), batch)["advantage_B"], stages(adora(), batch)["advantage_B"]
    factors = set()
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        right = [int(batch["length_B"][i]) for i in members if float(batch["reward_B"][i]) > 0.5]
        wrong = [int(batch["length_B"][i]) for i in members if float(batch["reward_B"][i]) <= 0.5]
        good = bool(right) and (not wrong or max(right) > statistics.fmean(wrong))
        factors.add(good)
        torch.testing.assert_close(ours[members], base[members] * (1.0 if good else 0.1))
    assert factors == {True, False}


def test_wrong_options():
    with pytest.raises(UserError, match="max_success must be between"):
        adora(tau=1.5)
    for weights in ((1.0,), (1.0, -0.1), (1.0, float("nan"))):
        with pytest.raises(UserError, match="weights must be two numbers of 0 or more"):
            FavourGroupsWithLongSuccesses(weights)


def test_a_group_may_reach_the_largest_share_of_right_answers():
    # 59 of 100, which in single precision is more than 0.59 of 100
    rewards = [1.0] * 59 + [0.0] * 41
    batch = flat_batch((2,) * 59 + (1,) * 41, advantage_B=[1.0] * 100, reward_B=rewards)
    for tau, weight in ((0.59, 1.0), (0.58, 0.1)):
        found = run(FavourGroupsWithLongSuccesses(max_success=tau), batch).value
        assert found.tolist() == pytest.approx([weight] * 100)


def test_the_share_of_worthwhile_groups_is_logged():
    # longest right answer 3, then 6, beside a mean of 4.5
    batch = flat_batch(
        (2, 5, 4, 3, 2, 5, 4, 6), (0,) * 4 + (1,) * 4, advantage_B=[1.0] * 8,
        reward_B=[1.0, 0.0, 0.0, 1.0] * 2,
    )  # fmt: skip
    told = run(FavourGroupsWithLongSuccesses(), batch).metrics
    assert told == {"groups/frac_worthwhile": 0.5}
