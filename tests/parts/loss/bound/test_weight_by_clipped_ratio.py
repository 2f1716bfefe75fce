import math

import pytest
import torch
from builders import flat_batch, gradient, ragged_batch, run

from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.parts.loss.bound.weight_by_clipped_ratio import WeightByClippedRatio
from strop.support.errors import UserError


def test_matches_slow_loop():
    batch = ragged_batch(1)
    batch = batch.set(log_ratio_T=batch["logp_T"] - batch["logp_old_T"])
    found = run(WeightByClippedRatio(0.1, 0.3), batch).value
    for t in batch["mask_T"].nonzero().squeeze(1).tolist():
        weight = min(max(math.exp(float(batch["log_ratio_T"][t])), 0.9), 1.3)
        expected = weight * float(batch["advantage_T"][t] * batch["logp_T"][t])
        assert float(found[t]) == pytest.approx(expected, rel=1e-9)


def test_gradient_is_the_clipped_ratio_times_the_advantage():
    # the weight is a constant for the gradient, so differences of the value would not show it
    ratios = torch.tensor([0.5, 0.95, 1.0, 1.1, 3.0], dtype=torch.float64)
    old_T = torch.full((5,), -2.0, dtype=torch.float64)
    advantage_T = torch.tensor([1.0, -1.0, 2.0, -3.0, -1.0], dtype=torch.float64)
    part = WeightByClippedRatio(0.1, 0.2)

    def function(logp_T):
        return part(logp_T - old_T, logp_T, advantage_T).value.sum()

    found = gradient(function, old_T + ratios.log())
    expected = torch.tensor([0.9, 0.95, 1.0, 1.1, 1.2], dtype=torch.float64) * advantage_T
    torch.testing.assert_close(found, expected)


def test_equals_clip_both_sides_in_gradient_at_ratio_1():
    logp_T = torch.tensor([-1.0, -2.0], dtype=torch.float64)
    advantage_T = torch.tensor([1.0, -3.0], dtype=torch.float64)
    ours = gradient(
        lambda x: WeightByClippedRatio()(x - logp_T, x, advantage_T).value.sum(), logp_T
    )
    clip = gradient(lambda x: ClipBothSides()(x - logp_T, advantage_T).value.sum(), logp_T)
    torch.testing.assert_close(ours, clip)
    assert ours.tolist() == [1.0, -3.0]


def test_edges_and_metrics():
    batch = flat_batch(
        (3,),
        log_ratio_T=[math.log(1e-3), 0.0, math.log(2.0)],
        logp_T=[-1.0, -1.0, -1.0],
        advantage_T=[1.0, 0.0, 1.0],
    )
    # the default has no lower bound
    result = run(WeightByClippedRatio(), batch)
    assert result.value.tolist() == pytest.approx([-1e-3, 0.0, -1.2])
    assert result.metrics["clip_ratio/region_mean"].tolist() == [0, 0, 1]
    metrics = run(WeightByClippedRatio(clip_low=0.5), batch).metrics
    assert metrics["clip_ratio/low_mean"].tolist() == [1, 0, 0]
    assert metrics["clip_ratio/high_mean"].tolist() == [0, 0, 1]
    assert metrics["clip_ratio/region_mean"].tolist() == [1, 0, 1]
    # a ratio on the edge is inside
    metrics = run(WeightByClippedRatio(0.0, 0.0), batch).metrics
    assert metrics["clip_ratio/region_mean"].tolist() == [1, 0, 1]
    for field in ("clip_low", "clip_high"):
        with pytest.raises(UserError, match=field):
            WeightByClippedRatio(**{field: -0.1})
