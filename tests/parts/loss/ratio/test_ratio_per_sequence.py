import pytest
import torch
from builders import flat_batch, gradient, ragged_batch, run, slope, tokens_of

from strop.parts.loss.ratio.ratio_per_sequence import RatioPerSequence
from strop.support.errors import UserError


def test_matches_slow_loop():
    batch = ragged_batch(1)
    found = run(RatioPerSequence(), batch).value
    for i in range(batch.size("B")):
        rows = tokens_of(batch, i)
        differences = [float(batch["logp_T"][t] - batch["logp_old_T"][t]) for t in rows]
        expected = sum(differences) / len(differences)
        for t in rows:
            assert float(found[t]) == pytest.approx(expected, rel=1e-9)
    assert torch.isfinite(found).all()


def test_gradient_reaches_every_token_of_the_rollout_and_not_the_old_policy():
    batch = ragged_batch(2)
    clean = {n: batch[n].nan_to_num() for n in ("logp_T", "logp_old_T", "advantage_T")}
    weight_T = clean["advantage_T"] + 0.1 * torch.arange(batch.size("T"))
    inputs = (batch["mask_T"], batch["rollout_T"], batch["num_rollouts"])

    def function(logp_T):
        return (
            RatioPerSequence()(logp_T, clean["logp_old_T"], *inputs).value.exp() * weight_T
        ).sum()

    torch.testing.assert_close(
        gradient(function, clean["logp_T"]), slope(function, clean["logp_T"]), atol=1e-7, rtol=1e-6
    )
    old_T = clean["logp_old_T"].clone().requires_grad_()
    leaf_T = clean["logp_T"].clone().requires_grad_()
    RatioPerSequence()(leaf_T, old_T, *inputs).value.sum().backward()
    assert old_T.grad is None
    assert (leaf_T.grad[~batch["mask_T"]] == 0).all()


def test_masked_nan_gets_no_gradient():
    batch = ragged_batch(3)
    leaf_T = batch["logp_T"].clone().requires_grad_()
    run(RatioPerSequence(), batch.set(logp_T=leaf_T)).value.sum().backward()
    assert torch.isfinite(leaf_T.grad).all()


def test_edges():
    batch = flat_batch((2, 1), logp_T=[0.0, 0.0, 0.0], logp_old_T=[-30.0, -2.0, 50.0])
    assert run(RatioPerSequence(), batch).value.tolist() == [10.0, 10.0, -50.0]
    batch = batch.set(mask_T=torch.tensor([False, True, False]))
    assert run(RatioPerSequence(), batch).value.tolist() == [2.0, 2.0, 0.0]
    with pytest.raises(UserError, match="max_nats"):
        RatioPerSequence(-1.0)


@pytest.mark.parametrize("own_gradient", [False, True])
def test_the_rollouts_log_ratio_and_how_far_tokens_are_from_it_is_logged(own_gradient):
    batch = flat_batch((2, 1), logp_T=[-1.0, -2.0, -1.0], logp_old_T=[-1.5, -1.0, -1.2])
    told = run(RatioPerSequence(own_gradient=own_gradient), batch).metrics
    assert told["ratio/log_abs_mean"].tolist() == pytest.approx([0.25, 0.25, 0.2])
    assert told["ratio/token_distance_mean"].tolist() == pytest.approx([0.75, 0.75, 0.0])
