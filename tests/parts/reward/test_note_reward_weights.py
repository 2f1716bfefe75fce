import torch
from fakes.services import FakeGrading

from strop.parts.reward.note_reward_weights import NoteRewardWeights


def noted(reward_BM, *weights):
    return NoteRewardWeights()(reward_BM, FakeGrading(reward_weights=weights))


def test_weights_of_the_run_beside_every_reward():
    found = noted(torch.zeros(3, 2).double(), 0.5, 2.0)
    assert found.tolist() == [[0.5, 2.0]] * 3
    assert found.dtype == torch.float64
    assert noted(torch.zeros(0, 2), 1.0, 3.0).shape == (0, 2)
