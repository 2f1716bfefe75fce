import pytest
import torch
from builders import gradient, ragged_batch, run, slope

from strop.parts.loss.ratio.ratio_per_sequence import RatioPerSequence
from strop.support.errors import UserError

PER_TURN = RatioPerSequence(unit="turn")


def test_matches_slow_loop():
    batch = ragged_batch(1, num_turns=(1, 3))
    found = run(PER_TURN, batch).value
    difference_T = batch["logp_T"] - batch["logp_old_T"]
    for turn in range(batch.size("K")):
        here_T = (batch["turn_T"] == turn) & batch["mask_T"]
        values = difference_T[here_T].tolist()
        expected = [pytest.approx(sum(values) / len(values), rel=1e-9)] * len(values)
        assert found[here_T].tolist() == expected
    assert not torch.allclose(found, run(RatioPerSequence(), batch).value)


def test_equals_ratio_per_sequence_when_every_rollout_has_one_turn():
    batch = ragged_batch(2, num_turns=(1, 1))
    found = run(PER_TURN, batch).value
    torch.testing.assert_close(found, run(RatioPerSequence(), batch).value)


def test_gradient():
    batch = ragged_batch(3)
    logp_T, old_T = batch["logp_T"].nan_to_num(), batch["logp_old_T"].nan_to_num()
    weight_T = torch.arange(batch.size("T")).double()

    def function(logp_T):
        given = batch.set(logp_T=logp_T, logp_old_T=old_T)
        found_T = run(PER_TURN, given).value
        return (found_T.exp() * weight_T).sum()

    expected = slope(function, logp_T)
    torch.testing.assert_close(gradient(function, logp_T), expected, atol=1e-6, rtol=1e-6)


def test_the_old_policy_gets_no_gradient():
    batch = ragged_batch(3)
    old_T = batch["logp_old_T"].clone().requires_grad_()
    assert not run(PER_TURN, batch.set(logp_old_T=old_T)).value.requires_grad


def test_edges():
    batch = ragged_batch(4)
    batch = batch.set(logp_old_T=batch["logp_T"] - 30.0)
    assert run(PER_TURN, batch).value.unique().tolist() == [10.0]
    batch = batch.set(logp_old_T=batch["logp_T"] + 30.0)
    assert float(run(PER_TURN, batch).value.min()) == pytest.approx(-30.0)
    batch = batch.set(mask_T=torch.zeros_like(batch["mask_T"]))
    assert run(PER_TURN, batch).value.unique().tolist() == [0.0]
    with pytest.raises(UserError, match="max_nats"):
        RatioPerSequence(-1.0, unit="turn")
    with pytest.raises(UserError, match="unit"):
        RatioPerSequence(unit="prompt")


def test_turns_can_keep_each_tokens_own_gradient():
    # the value of the turn's mean, and a slope of 1 in a token's own log-probability alone
    batch = ragged_batch(3)
    leaf_T = batch["logp_T"].nan_to_num().requires_grad_()
    given = batch.set(logp_T=leaf_T, logp_old_T=batch["logp_old_T"].nan_to_num())
    own = run(RatioPerSequence(own_gradient=True, unit="turn"), given).value
    torch.testing.assert_close(own.detach(), run(PER_TURN, given).value.detach())
    own.sum().backward()
    assert leaf_T.grad.tolist() == [1.0] * batch.size("T")
