import pytest
import torch
from builders import gradient, ragged_batch, run, slope

from strop.errors import UserError
from strop.loss.ratio.ratio_per_sequence import RatioPerSequence
from strop.loss.ratio.ratio_per_turn import RatioPerTurn


def test_matches_slow_loop():
    batch = ragged_batch(1, num_turns=(1, 3))
    found = run(RatioPerTurn(), batch).value
    difference_T = batch["logp_T"] - batch["logp_old_T"]
    for turn in range(batch.size("K")):
        here_T = (batch["turn_T"] == turn) & batch["mask_T"]
        values = difference_T[here_T].tolist()
        expected = [pytest.approx(sum(values) / len(values), rel=1e-9)] * len(values)
        assert found[here_T].tolist() == expected
    assert not torch.allclose(found, run(RatioPerSequence(), batch).value)


def test_equals_ratio_per_sequence_when_every_rollout_has_one_turn():
    batch = ragged_batch(2, num_turns=(1, 1))
    found = run(RatioPerTurn(), batch).value
    torch.testing.assert_close(found, run(RatioPerSequence(), batch).value)


def test_gradient():
    batch = ragged_batch(3)
    logp_T, old_T = batch["logp_T"].nan_to_num(), batch["logp_old_T"].nan_to_num()
    weight_T = torch.arange(batch.size("T")).double()

    def function(logp_T):
        given = batch.set(logp_T=logp_T, logp_old_T=old_T)
        found_T = run(RatioPerTurn(), given).value
        return (found_T.exp() * weight_T).sum()

    expected = slope(function, logp_T)
    torch.testing.assert_close(gradient(function, logp_T), expected, atol=1e-6, rtol=1e-6)


def test_the_old_policy_gets_no_gradient():
    batch = ragged_batch(3)
    old_T = batch["logp_old_T"].clone().requires_grad_()
    assert not run(RatioPerTurn(), batch.set(logp_old_T=old_T)).value.requires_grad


def test_edges():
    batch = ragged_batch(4)
    batch = batch.set(logp_old_T=batch["logp_T"] - 30.0)
    assert run(RatioPerTurn(), batch).value.unique().tolist() == [10.0]
    batch = batch.set(logp_old_T=batch["logp_T"] + 30.0)
    assert float(run(RatioPerTurn(), batch).value.min()) == pytest.approx(-30.0)
    batch = batch.set(mask_T=torch.zeros_like(batch["mask_T"]))
    assert run(RatioPerTurn(), batch).value.unique().tolist() == [0.0]
    with pytest.raises(UserError, match="max_nats"):
        RatioPerTurn(-1.0)
