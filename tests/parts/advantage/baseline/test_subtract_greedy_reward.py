import torch
from builders import flat_batch, run

from strop.parts.advantage.baseline.subtract_greedy_reward import SubtractGreedyReward


def test_worked_example_and_edges():
    rewards = {"advantage_B": [1.0, 0.0, 0.0, 1.0], "greedy_reward_B": [0.5, 0.5, 1.0, 1.0]}
    batch = flat_batch((1,) * 4, groups=(0, 0, 1, 1), **rewards)
    assert run(SubtractGreedyReward(), batch).value.tolist() == [0.5, -0.5, -1.0, 0.0]
    batch = batch.set(scored_B=torch.tensor([True, True, False, True]))
    assert run(SubtractGreedyReward(), batch).value.tolist() == [0.5, -0.5, 0.0, 0.0]


def test_the_greedy_answers_reward_is_logged():
    batch = flat_batch((1,) * 3, advantage_B=[1.0, 0.0, 0.0], greedy_reward_B=[1.0, 0.5, 9.0])
    batch = batch.set(scored_B=torch.tensor([True, True, False]))
    assert run(SubtractGreedyReward(), batch).metrics == {"greedy/reward": 0.75}
