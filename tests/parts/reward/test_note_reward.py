import pytest
from builders import flat_batch, run

from strop.parts.reward.note_reward import NoteReward


def test_noted_rewards_are_no_view_of_the_rewards():
    batch = flat_batch((1, 1), reward_B=[0.5, -1.0])
    noted = run(NoteReward(), batch).value
    assert noted.tolist() == pytest.approx([0.5, -1.0])
    noted += 1
    assert batch["reward_B"].tolist() == [0.5, -1.0]
