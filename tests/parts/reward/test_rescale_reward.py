from builders import flat_batch, run

from strop.parts.reward.rescale_reward import RescaleReward


def test_worked_example():
    batch = flat_batch((1,) * 3, reward_B=[0.0, 1.0, 0.25])
    assert run(RescaleReward(), batch).value.tolist() == [-1.0, 1.0, -0.5]
    assert run(RescaleReward(1.0, 0.5), batch).value.tolist() == [0.5, 1.5, 0.75]
