import pytest
import torch
from builders import flat_batch, ragged_batch, run

from strop.parts.advantage.scale.weigh_signs import WeighSigns
from strop.support.errors import UserError


def test_each_sign_has_its_weight():
    batch = flat_batch((1,) * 4, advantage_B=[1.5, -0.5, 0.0, -2.0])
    assert run(WeighSigns(), batch).value.tolist() == [0.0, -0.5, 0.0, -2.0]
    assert run(WeighSigns(0.1, 3.0), batch).value.tolist() == pytest.approx([0.15, -1.5, 0.0, -6.0])


@pytest.mark.parametrize("seed", range(4))
def test_both_weights_1_change_nothing_and_scale_together(seed):
    batch = ragged_batch(seed)
    scored_B = batch["scored_B"]
    plain_B = torch.where(scored_B, batch["advantage_B"], 0)
    assert run(WeighSigns(1.0, 1.0), batch).value.equal(plain_B)
    one = run(WeighSigns(0.25, 1.5), batch).value
    assert run(WeighSigns(0.5, 3.0), batch).value.equal(2 * one)
    assert not one[~scored_B].any()


def test_refuses_a_weight_below_0():
    for weights in ((-0.1, 1.0), (1.0, -0.1)):
        with pytest.raises(UserError, match="must be"):
            WeighSigns(*weights)


def test_the_mean_weight_is_logged():
    batch = flat_batch((1,) * 4, advantage_B=[2.0, -1.0, 0.0, 3.0])
    batch = batch.set(scored_B=torch.tensor([True, True, True, False]))
    told = run(WeighSigns(positive=0.5, negative=2.0), batch).metrics
    assert told == {"advantage/sign_weight": 1.25}
