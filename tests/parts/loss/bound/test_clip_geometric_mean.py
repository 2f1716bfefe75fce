import math

import pytest
import torch
from builders import flat_batch, gradient, ragged_batch, run, slope, tokens_of

from strop.parts.loss.bound.clip_geometric_mean import ClipGeometricMean
from strop.support.errors import UserError


def test_matches_slow_loop_and_finite_differences():
    batch = ragged_batch(2, unscored=())
    x_T = (batch["logp_T"] - batch["logp_old_T"]).nan_to_num()
    noise_T = torch.randn(len(x_T), generator=torch.Generator().manual_seed(0)).double()
    batch = batch.set(advantage_T=torch.where(batch["mask_T"], noise_T, 0), log_ratio_T=x_T)
    part = ClipGeometricMean(0.2, 0.3)
    found = run(part, batch).value
    clipped = 0
    for i in range(batch.size("B")):
        rows = tokens_of(batch, i)
        y = []
        for t in rows:
            s = math.copysign(1, float(noise_T[t]))
            bound = min(max(float(x_T[t]), -0.2), 0.3)
            y.append(s * min(s * float(x_T[t]), s * bound))
            clipped += y[-1] != float(x_T[t])
        mean = sum(float(noise_T[t]) for t in rows) / len(rows)
        expected = mean * math.exp(sum(y) / len(y))
        assert found[rows].tolist() == pytest.approx([expected] * len(rows), rel=1e-9)
    assert clipped > 3

    def value(x_T):
        return run(part, batch.set(log_ratio_T=x_T)).value[batch["mask_T"]].sum()

    torch.testing.assert_close(gradient(value, x_T), slope(value, x_T), atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize(("sign", "low", "high"), [(1, [0] * 4, [1, 0, 0, 0]),
                                                  (-1, [0, 1, 0, 0], [0] * 4)])  # fmt: skip
def test_the_shares_that_are_clipped_below_and_above(sign, low, high):
    batch = flat_batch((4,), log_ratio_T=[0.6, -0.6, 0.1, -0.1], advantage_T=[float(sign)] * 4)
    metrics = run(ClipGeometricMean(), batch).metrics
    assert metrics["clip_ratio/low_mean"].tolist() == low
    assert metrics["clip_ratio/high_mean"].tolist() == high


def test_edges():
    batch = flat_batch((2,), log_ratio_T=[0.9, 0.1], advantage_T=[0.0, 0.0])
    assert run(ClipGeometricMean(), batch).value.tolist() == [0, 0]
    part = run(ClipGeometricMean(), flat_batch((2,), log_ratio_T=[0.9, 0.1], advantage_T=[1.0] * 2))
    assert part.metrics["clip_ratio/region_mean"].tolist() == [1, 0]
    with pytest.raises(UserError, match="clip_low"):
        ClipGeometricMean(-0.1)
