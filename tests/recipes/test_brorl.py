import pytest
import torch
from builders import flat_batch, ragged_batch, run, stages
from models import Lab, without_times
from runs import Runner

from strop.parts.rate.scale_step_by_rollouts import ScaleStepByRollouts
from strop.recipes.brorl import brorl
from strop.support.errors import UserError


def test_the_learning_rate_grows_with_the_root_of_the_rollouts():
    # 16 rollouts of 512 prompts -> 512 of 128: times sqrt(8)
    batch = flat_batch([1] * 64)
    assert run(ScaleStepByRollouts(base=8), batch).value == pytest.approx(2.8284, abs=1e-4)
    half = batch.set(scored_B=torch.arange(64) % 2 == 0)
    found = run(ScaleStepByRollouts(base=8), half)
    assert found.value == found.metrics["rate/lr_scale"] == 2.0
    assert run(ScaleStepByRollouts(), batch.set(scored_B=torch.zeros(64).bool())).value == 1.0
    with pytest.raises(UserError, match="base"):
        ScaleStepByRollouts(base=0)
    assert (8 * 512 / brorl().rates[0].part.base) ** 0.5 == pytest.approx(2.8284, abs=1e-4)


def test_advantages_are_centred_in_groups_and_whitened_over_the_step():
    batch = ragged_batch(1, unscored=())
    ours = stages(brorl(), batch)["advantage_B"]
    reward_B, group_B = batch["reward_B"], batch["group_B"]
    means = torch.stack([reward_B[group_B == g].mean() for g in range(4)])
    centred = reward_B - means[group_B]
    alone = group_B == 1  # a group of one keeps its reward
    centred = torch.where(alone, reward_B, centred)
    expected = (centred - centred.mean()) / centred.std()
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)


def test_recipe():
    assert brorl(beta=0.0).control == brorl(reset_every=0).control == ()
    assert brorl().paths()["control.renew_reference.every"] == 100


def test_a_run_moves_its_rate(tmp_path):
    raw = Lab.make(tmp_path).raw("brorl(reset_every=2, base_rollouts=4)", reward="even")
    raw["algorithm"]["sampling.num_rollouts"] = 16
    Runner().whole(raw, tmp_path / "whole")
    first = without_times(tmp_path / "whole")[1]
    assert first["rate/lr_scale"] == pytest.approx((first["num_rollouts"] / 4) ** 0.5)
