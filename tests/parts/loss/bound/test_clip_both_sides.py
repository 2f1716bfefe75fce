import math

import pytest
import torch
from builders import flat_batch, gradient, ragged_batch, run, slope

from strop.parts.loss.bound._bounds import clip, dual_clipped
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.support.errors import UserError

# (ratio, advantage) -> loss at widths .2/.2 and dual clip 3
CASES = [(1.5, 1, -1.2), (0.5, 1, -0.5), (1.5, -1, 1.5), (0.5, -1, 0.8), (5, -1, 3.0)]


def _columns(ratios, advantages):
    return {
        "log_ratio_T": [math.log(r) for r in ratios],
        "advantage_T": [float(a) for a in advantages],
    }


def test_worked_example():
    ratios, advantages, losses = zip(*CASES, strict=True)
    batch = flat_batch((5,), **_columns(ratios, advantages))
    found = -run(ClipBothSides(dual_clip_c=3.0), batch).value
    assert found.tolist() == pytest.approx(list(losses), rel=1e-12)
    # without the dual clip the last one is 5; with clip_high .28 the first is -1.28
    found = -run(ClipBothSides(clip_high=0.28), batch).value
    assert found.tolist() == pytest.approx([-1.28, -0.5, 1.5, 0.8, 5.0], rel=1e-12)


def test_matches_slow_loop():
    batch = ragged_batch(1)
    batch = batch.set(log_ratio_T=torch.sin(torch.arange(batch.size("T")).double()))
    found = run(ClipBothSides(0.1, 0.3, dual_clip_c=1.2), batch).value
    for t in range(batch.size("T")):
        ratio = math.exp(float(batch["log_ratio_T"][t]))
        advantage = float(batch["advantage_T"][t])
        expected = min(ratio * advantage, min(max(ratio, 0.9), 1.3) * advantage)
        if advantage < 0:
            expected = max(expected, 1.2 * advantage)
        assert float(found[t]) == pytest.approx(expected, rel=1e-9)


def test_gradient():
    ratios = [0.7, 0.7, 0.9, 0.9, 1.1, 1.1, 1.4, 1.4, 4.0]
    advantages = [1.0, -1.0, 2.0, -2.0, 1.5, -1.5, 1.0, -1.0, -1.0]
    given = _columns(ratios, advantages)
    log_ratio_T, advantage_T = (torch.tensor(v, dtype=torch.float64) for v in given.values())

    def function(log_ratio_T):
        return ClipBothSides(dual_clip_c=3.0)(log_ratio_T, advantage_T).value.sum()

    found = gradient(function, log_ratio_T)
    torch.testing.assert_close(found, slope(function, log_ratio_T), atol=1e-8, rtol=1e-6)
    # clipped: low with negative, high with positive advantage, dual clip; else ratio * advantage
    expected = [0.7, 0, 1.8, -1.8, 1.65, -1.65, 0, -1.4, 0]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


def test_at_a_tie_the_gradient_follows_the_unclipped_branch():
    log_ratio_T = torch.zeros(2, dtype=torch.float64)
    advantage_T = torch.tensor([1.0, -1.0], dtype=torch.float64)
    part = ClipBothSides(clip_low=0.0, clip_high=0.0)  # the band is the point 1
    found = gradient(lambda x: part(x, advantage_T).value.sum(), log_ratio_T)
    assert found.tolist() == [1.0, -1.0]


def test_metrics_count_clipped_tokens():
    batch = flat_batch((5,), **_columns([0.5, 0.5, 1.5, 1.5, 1.1], [-1, 1, 1, -1, 1]))
    metrics = run(ClipBothSides(), batch).metrics
    assert metrics["clip_ratio/low_mean"].tolist() == [1, 0, 0, 0, 0]
    assert metrics["clip_ratio/high_mean"].tolist() == [0, 0, 1, 0, 0]
    assert metrics["clip_ratio/region_mean"].tolist() == [1, 0, 1, 0, 0]


def test_edges():
    batch = flat_batch((2,), **_columns([0.1, 9.0], [0, 0]))
    assert run(ClipBothSides(dual_clip_c=3.0), batch).value.tolist() == [0, 0]
    # the dual clip leaves positive advantages alone
    batch = flat_batch((2,), **_columns([1.1, 1.1], [0.5, -0.5]))
    assert run(ClipBothSides(dual_clip_c=2.0), batch).value.tolist() == pytest.approx([0.55, -0.55])
    for inside in (0.5, 1.0):
        with pytest.raises(UserError, match="dual_clip_c"):
            run(ClipBothSides(dual_clip_c=inside), batch)
    for field in ("clip_low", "clip_high", "dual_clip_c"):
        with pytest.raises(UserError, match=field):
            ClipBothSides(**{field: -0.1})


def test_what_the_dual_clip_holds_is_logged_where_there_is_one():
    ratios, advantages, _ = zip(*CASES, strict=True)
    batch = flat_batch((5,), **_columns(ratios, advantages))
    told = run(ClipBothSides(dual_clip_c=3.0), batch).metrics
    assert told["clip_ratio/dual_mean"].tolist() == [0, 0, 0, 0, 1]
    assert "clip_ratio/dual_mean" not in run(ClipBothSides(), batch).metrics


def test_every_dual_clip_is_above_one():
    advantage_T = torch.tensor([-1.0])
    clipped = clip(torch.tensor([2.0]), advantage_T, 0.8, 1.2)
    with pytest.raises(UserError, match=r"dual_clip_c must be above 1, or 0 for none, it is 0\.5"):
        dual_clipped(clipped, advantage_T, 0.5)
