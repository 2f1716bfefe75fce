"""The two objectives without a ratio."""

import torch
from builders import gradient, ragged_batch, run

from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.parts.loss.bound.follow_advantage import FollowAdvantage
from strop.parts.loss.bound.follow_log_likelihood import FollowLogLikelihood


def test_values_and_reductions():
    batch = ragged_batch(1, unscored=())
    rows_T = batch["mask_T"]
    logp_T, advantage_T = batch["logp_T"][rows_T], batch["advantage_T"][rows_T]
    expected = [float(a) * float(x) for a, x in zip(advantage_T, logp_T, strict=True)]
    assert run(FollowAdvantage(), batch).value[rows_T].tolist() == expected
    assert run(FollowLogLikelihood(), batch).value[rows_T].equal(logp_T)
    ones_T = torch.ones_like(logp_T)
    assert FollowAdvantage()(logp_T, ones_T).equal(FollowLogLikelihood()(logp_T))

    def plain(x_T):
        return FollowAdvantage()(x_T, advantage_T).sum()

    def clipped(x_T):
        return ClipBothSides()(x_T - logp_T, advantage_T).value.sum()

    assert gradient(plain, logp_T).equal(advantage_T)
    torch.testing.assert_close(gradient(clipped, logp_T), advantage_T)
