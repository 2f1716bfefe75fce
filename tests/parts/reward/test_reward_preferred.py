import torch

from strop.parts.reward.reward_preferred import RewardPreferred


def test_the_preferred_answer_has_the_reward():
    outcome_B, reward_B, scored_B = RewardPreferred()(torch.tensor([1, -1, 0]))
    assert outcome_B.tolist() == reward_B.tolist() == [1.0, 0.0, 0.0]
    assert scored_B.all()
