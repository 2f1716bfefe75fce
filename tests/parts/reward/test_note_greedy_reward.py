import torch
from builders import flat_batch, run

from strop.parts.reward.note_greedy_reward import NoteGreedyReward


def test_every_rollout_hears_of_its_greedy_one():
    batch = flat_batch((1,) * 6, groups=(0, 0, 0, 1, 1, 2), reward_B=[1.0, 0.0, 0.5, 2.0, 3.0, 4.0])
    batch = batch.set(stage_B=torch.tensor([0, 0, 1, 1, 0, 0]))
    greedy_B, scored_B = run(NoteGreedyReward(), batch).value
    assert greedy_B.tolist() == [0.5, 0.5, 0.5, 2.0, 2.0, 0.0]
    assert scored_B.tolist() == [True] * 5 + [False]  # the last group has no greedy rollout
    failed = batch.set(scored_B=torch.tensor([True, False, False, True, True, True]))
    assert run(NoteGreedyReward(), failed).value[1].tolist() == [False] * 3 + [True] * 2 + [False]
