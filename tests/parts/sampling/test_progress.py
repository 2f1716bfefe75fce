"""Progress over stages, what follows a turn, and labels by share."""

import pytest
import torch

from strop.parts.sampling._progress import look_ahead, slices, stage_progress, top_share


def between(value):
    """The progress between two rows, by the values of both."""
    return lambda a, b: value[b] - value[a]


def test_progress_of_the_worked_example():
    # two stages, a turn at the start and one in the middle of each
    stage, episode = torch.tensor([0, 0, 1, 1]), torch.zeros(4, dtype=torch.int64)
    assert stage_progress(stage, episode, 2).tolist() == [0, 0.25, 0.5, 0.75]
    both = stage_progress(torch.tensor([0, 0, 1, 0, 1, 1]), torch.tensor([0, 0, 0, 5, 5, 5]), 2)
    assert both.tolist() == [0, 0.25, 0.5, 0, 0.5, 0.75]


def test_fewer_turns_than_the_horizon_are_scaled_up():
    # 20 turns left, progress .1 over them: .1 * 50 / 20 = .25
    value = torch.linspace(0, 0.1, 21, dtype=torch.float64)
    found = look_ahead(torch.zeros(21, dtype=torch.int64), 50, between(value))
    assert float(found[0]) == pytest.approx(0.25)
    assert float(found[-1]) == 0
    assert found[:-1].tolist() == pytest.approx([0.25] * 20)


def test_episodes_end_where_they_end_and_results_are_bounded():
    episode = torch.tensor([3, 3, 3, 1, 1])
    value = torch.tensor([0.0, 0.5, 0.25, 0.0, -0.9], dtype=torch.float64)
    assert look_ahead(episode, 1, between(value)).tolist() == [0.5, -0.25, 0, -0.9, 0]
    assert look_ahead(episode, 2, between(value)).tolist() == [0.25, -0.5, 0, -1, 0]


def test_labels_by_share_of_all_and_of_each_stage():
    advantage = torch.tensor([0.9, 0.1, 0.5, 0.3, -0.2, 0.0])
    assert top_share(advantage, 50).tolist() == [True, False, True, True, False, False]
    stage = torch.tensor([0, 0, 0, 1, 1, 1])
    assert top_share(advantage, 34, stage).tolist() == [True, False, False, True, False, False]
    assert top_share(advantage, 100).all()
    assert not top_share(advantage, 0).any()
    assert slices(advantage, 3).tolist() == [2, 1, 2, 1, 0, 0]
