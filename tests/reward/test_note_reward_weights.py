from types import SimpleNamespace

import torch

from strop.reward.note_reward_weights import NoteRewardWeights


def services(*weights):
    specs = tuple(SimpleNamespace(weight=weight) for weight in weights)
    return SimpleNamespace(grader=SimpleNamespace(specs=specs))


def test_weights_of_the_run_beside_every_reward():
    found = NoteRewardWeights()(torch.zeros(3, 2).double(), services(0.5, 2.0))
    assert found.tolist() == [[0.5, 2.0]] * 3
    assert found.dtype == torch.float64


def test_an_environments_own_reward_counts_one():
    assert NoteRewardWeights()(torch.zeros(2, 3), services(0.5, 2.0)).tolist() == [[1, 0.5, 2]] * 2
    assert NoteRewardWeights()(torch.zeros(2, 1), services()).tolist() == [[1], [1]]
    assert NoteRewardWeights()(torch.zeros(0, 2), services(1.0, 3.0)).shape == (0, 2)
