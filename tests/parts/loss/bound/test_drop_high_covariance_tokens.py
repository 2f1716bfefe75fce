import math

import pytest
import torch
from builders import flat_batch, gradient, ragged_batch, run, slope

from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.parts.loss.bound.drop_high_covariance_tokens import DropHighCovarianceTokens
from strop.support.errors import UserError

# mean advantage 0, mean logp -1.825: covariances 1.725, -2.175, -1.625, 1.175
EXAMPLE = {
    "advantage_T": [1.0, 1.0, -1.0, -1.0],
    "logp_T": [-0.1, -4.0, -0.2, -3.0],
    "log_ratio_T": [0.0, 0.0, 0.0, 0.0],
}


def _rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _dropped(part, batch, seed=0) -> list[int]:
    found = run(part, batch, rng=_rng(seed))
    return found.metrics["clip_ratio/covariance_mean"].nonzero().squeeze(1).tolist()


def test_worked_example():
    batch = flat_batch((4,), **EXAMPLE)
    drawn = {tuple(_dropped(DropHighCovarianceTokens(), batch, seed)) for seed in range(20)}
    assert drawn == {(0,), (3,)}  # one of the two candidates, and either can come
    # bounds are strict: with both covariances outside (1.175, 1.725) nothing is dropped
    a_T, l_T = batch["advantage_T"], batch["logp_T"]
    cov_T = (a_T - a_T.mean()) * (l_T - l_T.mean())
    between = DropHighCovarianceTokens(cov_low=float(cov_T[3]), cov_high=float(cov_T[0]))
    assert _dropped(between, batch) == []
    # two of four
    assert _dropped(DropHighCovarianceTokens(drop_share=0.5), batch) == [0, 3]


def test_dropped_tokens_and_candidates_may_be_given():
    batch = flat_batch((4,), **EXAMPLE)
    part = DropHighCovarianceTokens()
    given = batch.set(dropped_T=torch.tensor([0, 1, 0, 1]))  # numbers will do
    assert run(part, given, rng=_rng()).value.tolist() == [1.0, 0.0, -1.0, 0.0]
    given = batch.set(
        candidate_T=torch.tensor([False, True, True, False]), num_drop=torch.tensor(2)
    )
    assert run(part, given, rng=_rng()).value.tolist() == [1.0, 0.0, 0.0, -1.0]


def test_statistics_and_draw_are_over_tokens_with_gradient():
    batch = ragged_batch(5, groups=(6, 6), lengths=(4, 9), unscored=(2,))
    batch = batch.set(log_ratio_T=batch["logp_T"] - batch["logp_old_T"])
    rows = batch["gradient_T"].nonzero().squeeze(1).tolist()
    advantage = [float(batch["advantage_T"][t]) for t in rows]
    logp = [float(batch["logp_T"][t]) for t in rows]
    candidates = []
    for t, a, lp in zip(rows, advantage, logp, strict=True):
        cov = (a - sum(advantage) / len(rows)) * (lp - sum(logp) / len(rows))
        ratio = math.exp(float(batch["log_ratio_T"][t]))
        clipped = min(max(ratio, 0.8), 1.2) * a < ratio * a
        if 0.2 < cov < 1.5 and not clipped:
            candidates.append(t)
    assert 3 < len(candidates) < len(rows) / 2
    everything = DropHighCovarianceTokens(drop_share=1.0, cov_low=0.2, cov_high=1.5)
    assert _dropped(everything, batch) == candidates
    share = 2.5 / len(rows)  # int(2.5) = 2 tokens
    some = DropHighCovarianceTokens(drop_share=share, cov_low=0.2, cov_high=1.5)
    drawn = _dropped(some, batch)
    assert len(drawn) == 2
    assert set(drawn) <= set(candidates)
    assert torch.isfinite(run(some, batch, rng=_rng()).value[rows]).all()


def test_draw_is_uniform_and_repeatable():
    batch = flat_batch((4,), **EXAMPLE)
    part = DropHighCovarianceTokens()
    assert _dropped(part, batch, 7) == _dropped(part, batch, 7)
    first = sum(_dropped(part, batch, seed) == [0] for seed in range(400))
    assert 150 < first < 250  # 200 expected, standard deviation 10


def test_equals_clip_both_sides_without_a_candidate():
    batch = ragged_batch(1)
    batch = batch.set(log_ratio_T=batch["logp_T"] - batch["logp_old_T"])
    part = DropHighCovarianceTokens(0.1, 0.3, cov_low=50.0, cov_high=60.0)
    rows_T = batch["mask_T"]
    found = run(part, batch, rng=_rng()).value[rows_T]
    expected = run(ClipBothSides(0.1, 0.3), batch)
    torch.testing.assert_close(found, expected.value[rows_T])
    clipped = run(part, batch, rng=_rng()).metrics["clip_ratio/region_mean"]
    assert (clipped == expected.metrics["clip_ratio/region_mean"])[rows_T].all()


def test_gradient():
    batch = ragged_batch(3, unscored=())
    rows_T = batch["mask_T"]
    logp_T, old_T = batch["logp_T"][rows_T], batch["logp_old_T"][rows_T]
    advantage_T = batch["advantage_T"][rows_T]
    everywhere_T = torch.ones_like(advantage_T, dtype=torch.bool)
    dropped_T = torch.arange(len(logp_T)) % 3 == 0
    part = DropHighCovarianceTokens()

    def function(logp_T):
        log_ratio_T = logp_T - old_T
        return part(
            log_ratio_T, logp_T, advantage_T, everywhere_T, _rng(), dropped_T=dropped_T
        ).value.sum()

    found = gradient(function, logp_T)
    torch.testing.assert_close(found, slope(function, logp_T), atol=1e-8, rtol=1e-6)
    assert (found[dropped_T] == 0).all()
    assert (found != 0).any()
    # the choice of candidates gives logp no gradient of its own
    leaf_T = logp_T.clone().requires_grad_()
    assert not part(old_T * 0, leaf_T, advantage_T, everywhere_T, _rng()).value.requires_grad


def test_edges():
    for field, value in (("clip_low", -1), ("clip_high", -1), ("drop_share", 1.5)):
        with pytest.raises(UserError, match=field):
            DropHighCovarianceTokens(**{field: value})
    none = flat_batch((4,), **EXAMPLE).set(gradient_T=torch.zeros(4, dtype=torch.bool))
    assert _dropped(DropHighCovarianceTokens(), none) == []
