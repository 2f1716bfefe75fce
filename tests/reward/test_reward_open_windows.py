import json

import pytest
import torch
from builders import NAN, flat_batch, ragged_batch, run

from strop.reward._open_windows import code_bonus, covered, difficulty, window_means
from strop.reward.reward_open_windows import RewardOpenWindows


def tensor(*values):
    return torch.tensor(values).double()


@pytest.mark.parametrize(
    ("of", "right", "rewards"),
    [
        (0, True, [1.0, 1.0, 0.5]),
        (1, True, [0.8182, 1.0, 0.8182]),
        (2, True, [0.9688, 1.4575, 1.5757]),
        (0, False, [0.15, 0.15, 0.2714]),
        (2, False, [0.3, 0.3, 0.4182]),
    ],
)
def test_worked_example_of_the_code(of, right, rewards):
    excess = tensor(4.0, 10.0, 16.0) - 10
    given = torch.full((3,), of), torch.full((3,), right)
    bonus, _ = code_bonus(excess, tensor(10.0, 10.0, 10.0), *given, 0.5)
    assert (bonus + float(right)).tolist() == pytest.approx(rewards, abs=6e-5)


def test_windows_and_difficulty_by_hand():
    rollout = torch.tensor([0, 0, 0, 1, 1])
    mean, whole = window_means(tensor(1.0, 2.0, 6.0, 4.0, 0.0), rollout, 2)
    assert whole.tolist() == [True, True, False, True, False]
    assert mean[whole].tolist() == pytest.approx([1.5, 4.0, 2.0])
    begins = torch.tensor([False, True, False, False, True])
    assert covered(begins, 2).tolist() == [False, True, True, False, True]
    right = torch.tensor([True, True, False, True, False, False, False])
    group = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    every = torch.ones(7, dtype=torch.bool)
    assert difficulty(right, group, 3, every).tolist() == [0, 0, 0, 1, 1, 1, 2]
    every[2] = every[4] = every[5] = False  # unscored ones do not count: 2 of 2 and 1 of 1
    assert difficulty(right, group, 3, every).tolist() == [0, 0, 0, 0, 0, 0, 2]


def example():
    """Four rollouts of a medium prompt, two right; windows of one token."""
    entropy = [0.1] * 8
    for token in (0, 1, 4, 7):
        entropy[token] = 2.0
    return flat_batch(
        (2, 2, 2, 2), entropy_behavior_T=entropy, reward_B=[1.0, 0.0, 1.0, 0.0],
        outcome_B=[1.0, 0.0, 1.0, 0.0],
    )  # fmt: skip


def test_the_paper_on_a_target_carried_over():
    # N = 2, 0, 1, 1 with tau between .1 and 2; mean 1, variance .5
    part = RewardOpenWindows(width=1)
    batch = example()
    first = run(part, batch, state=part.init())
    reward, count, weight, of = first.value
    assert count.tolist() == [2.0, 0.0, 1.0, 1.0]
    assert of.tolist() == [1] * 4
    assert reward.equal(batch["reward_B"])  # the target is the mean: lambda 0
    assert weight.tolist() == [0.67 if h > 1 else 1.0 for h in batch["entropy_behavior_T"]]
    state = {"target": (-1.0, 0.5, -1.0), "level": (-1.0,)}
    found = run(part, batch, state=json.loads(json.dumps(state))).value[0]
    factor = (1 - 0.5) / 0.5
    assert found.tolist() == pytest.approx([1.0, -factor * 0.5, 1.0, -factor * 0.5])
    fewer = run(part, batch, state={**state, "target": (-1.0, 3.0, -1.0)}).value[0]
    assert fewer.equal(batch["reward_B"])  # below the target lambda is 0


def test_targets_are_running_means_of_the_steps():
    part = RewardOpenWindows(width=1)
    windows, of = tensor(2.0, 4.0, 1.0, 9.0), torch.tensor([1, 1, 0, 2])
    scored = torch.tensor([True, True, True, False])
    state = part.update(windows, of, scored, part.init())
    assert state["target"] == (1.0, 3.0, -1.0)
    state = part.update(windows + 1, of, scored, state)
    assert state["target"] == pytest.approx((1.1, 3.1, -1.0))


def test_the_code_on_a_running_threshold():
    part = RewardOpenWindows("code", width=1)
    batch = example()
    result = run(part, batch, state=part.init())
    # quantiles of 95%: 2, .1, and 1.905 twice; their median 1.905
    assert result.state["level"] == pytest.approx((1.905,))
    again = run(part, batch, state={**result.state, "level": (1.0,)})
    assert again.state["level"] == pytest.approx((0.99 + 0.01 * 1.905,))
    reward, count, weight, _ = result.value
    assert count.tolist() == [2.0, 0.0, 1.0, 1.0]
    # at a target of 1 with margin 1: right ones keep 1; wrong ones of a medium prompt .5 .5 .8
    assert reward.tolist() == pytest.approx([1.0, 0.2, 1.0, 0.2])
    assert weight.tolist() == [1.0] * 8
    easy = batch.set(outcome_B=tensor(1.0, 0.0, 1.0, 1.0))
    weight = run(part, easy, state=part.init()).value[2]
    assert weight.tolist() == pytest.approx([1.0, 1.0, 0.67, 0.67, 1.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_unscored_rollouts_void_entropies_and_the_mask_do_not_matter(variant):
    part = RewardOpenWindows(variant, width=2)
    batch = ragged_batch(3)
    found = run(part, batch, state=part.init())
    reward, count, weight, of = found.value
    assert reward[4].isnan()
    assert all(each.isfinite().all() for each in (count, weight, of))
    scored = batch["scored_B"]
    other = batch.set(outcome_B=torch.where(scored, batch["outcome_B"], 1.0))
    again = run(part, other, state=part.init()).value[0]
    assert again[scored].equal(reward[scored])
    void = batch.set(entropy_behavior_T=torch.full_like(batch["entropy_behavior_T"], NAN))
    assert run(part, void, state=part.init()).value[0][scored].isfinite().all()
    empty = batch.keep(batch["index_B"] < 0)
    assert run(part, empty, state=part.init()).value[0].shape == (0,)
