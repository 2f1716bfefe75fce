import math

import pytest
from builders import assert_same_push, flat_batch, learning, pushed, ragged_batch, stages

from strop.recipes.cispo import cispo


def test_worked_example():
    # ratio 1.5 cut to 1.28: loss = -1.28 ln .3 = 1.541085, coefficient of grad logp = -1.28
    batch = flat_batch((1,), logp_T=[math.log(0.3)], logp_old_T=[math.log(0.2)], advantage_T=[1.0])
    loss, found, _ = pushed(cispo(clip_high=0.28), batch)
    assert loss == pytest.approx(1.541085, abs=1e-6)
    assert found["logp_T"].tolist() == pytest.approx([-1.28])


def test_coefficient_of_every_token_is_the_clipped_ratio_times_the_advantage():
    algorithm = cispo(clip_low=0.3, clip_high=0.1)
    batch = stages(algorithm, ragged_batch(1))
    count = int(batch["denominator_T"].sum())
    found = pushed(algorithm, batch)[1]["logp_T"]
    for i, tokens in learning(batch):
        for t in tokens:
            ratio = math.exp(float(batch["logp_T"][t] - batch["logp_old_T"][t]))
            expected = -min(max(ratio, 0.7), 1.1) * float(batch["advantage_B"][i]) / count
            assert float(found[t]) == pytest.approx(expected, rel=1e-10, abs=1e-15)


def test_gradient_is_that_of_the_published_loss():
    algorithm = cispo()
    batch = stages(algorithm, ragged_batch(2))

    def loss_of(logp_T):
        count = sum(len(tokens) for _, tokens in learning(batch))
        total = logp_T.new_zeros(())
        for i, tokens in learning(batch):
            ratio = (logp_T[tokens] - batch["logp_old_T"][tokens]).exp().clamp(max=1.2).detach()
            total = total - (ratio * batch["advantage_B"][i] * logp_T[tokens]).sum() / count
        return total

    assert_same_push(algorithm, batch, loss_of)
