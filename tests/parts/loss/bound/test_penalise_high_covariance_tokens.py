import math

import pytest
import torch
from builders import flat_batch, gradient, ragged_batch, run, slope

from strop.parts.loss.bound.penalise_high_covariance_tokens import PenaliseHighCovarianceTokens
from strop.support.errors import UserError

EXAMPLE = {"advantage_T": [1.0, 1.0, -1.0, -1.0], "logp_T": [-0.1, -4.0, -0.2, -3.0],
           "log_ratio_T": [0.1, 0.0, 0.0, -0.1]}  # fmt: skip


def test_worked_example():
    # covariances 1.725, -2.175, -1.625, 1.175: token 0 pays .1 for having moved by .1
    found = run(PenaliseHighCovarianceTokens(), flat_batch((4,), **EXAMPLE)).value.tolist()
    assert found == pytest.approx([1.1052 - 0.1, 1.0, -1.0, -0.9048], abs=5e-5)
    assert -sum(found) / 4 == pytest.approx(-0.0251, abs=5e-5)


def test_matches_slow_loop():
    batch = ragged_batch(5, groups=(6, 6), lengths=(4, 9), unscored=(2,))
    log_ratio_T = batch["logp_T"] - batch["logp_old_T"]
    rows = batch["gradient_T"].nonzero().squeeze(1).tolist()
    mean_a = sum(float(batch["advantage_T"][t]) for t in rows) / len(rows)
    mean_l = sum(float(batch["logp_T"][t]) for t in rows) / len(rows)

    def covariance(t):
        return (float(batch["advantage_T"][t]) - mean_a) * (float(batch["logp_T"][t]) - mean_l)

    number = int(0.1 * len(rows))
    assert number > 3
    held = sorted(rows, key=covariance)[-number:]
    part = PenaliseHighCovarianceTokens(share=0.1, coef=0.7)
    found = run(part, batch.set(log_ratio_T=log_ratio_T)).value
    for t in rows:
        x = float(log_ratio_T[t])
        expected = math.exp(x) * float(batch["advantage_T"][t]) - 0.7 * abs(x) * (t in held)
        assert float(found[t]) == pytest.approx(expected, rel=1e-9)


def test_gradient():
    batch = ragged_batch(3, unscored=())
    rows_T = batch["mask_T"]
    logp_T, old_T = batch["logp_T"][rows_T], batch["logp_old_T"][rows_T]
    advantage_T, all_T = batch["advantage_T"][rows_T], torch.ones_like(logp_T).bool()
    part = PenaliseHighCovarianceTokens(share=0.3)

    def value(x_T):
        return part(x_T - old_T, logp_T, advantage_T, all_T).value.sum()

    torch.testing.assert_close(gradient(value, logp_T), slope(value, logp_T), atol=1e-8, rtol=1e-6)
    # at log-ratio 0 the penalty has no gradient
    free = gradient(lambda x_T: (x_T.exp() * advantage_T).sum(), old_T * 0)
    held = gradient(lambda x_T: part(x_T, logp_T, advantage_T, all_T).value.sum(), old_T * 0)
    torch.testing.assert_close(held, free)


def test_edges():
    for field, value in (("share", 1.5), ("coef", -1.0)):
        with pytest.raises(UserError, match=field):
            PenaliseHighCovarianceTokens(**{field: value})
    none = flat_batch((4,), **EXAMPLE).set(gradient_T=torch.zeros(4, dtype=torch.bool))
    found = run(PenaliseHighCovarianceTokens(), none)
    assert found.metrics["kl_cov/penalised_mean"].tolist() == [0, 0, 0, 0]
