import math

import pytest
import torch
from builders import flat_batch, gradient, ragged_batch, run, slope

from strop.parts.loss.bound.balance_clip_bounds import BalanceClipBounds
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.support.errors import UserError

CODE = BalanceClipBounds((0.6, 0.8, 0.05), (1.2, 2.0, 0.1), target=1.0, source_form="code")


def _bounds(part, batch):
    metrics = run(part, batch).metrics
    return metrics["bapo/c_low"], metrics["bapo/c_high"]


def _example():
    # ratios 1.5 and 0.5, old probabilities .25 and .5
    return flat_batch(
        (2,),
        log_ratio_T=[math.log(1.5), math.log(0.5)],
        logp_T=[math.log(0.375), math.log(0.25)],
        advantage_T=[1.0, -1.0],
    )


@pytest.mark.parametrize(
    ("target", "bounds"), [(0.4, (0.6, 1.2)), (0.499, (0.6, 1.2)), (0.54, (0.6, 1.45))]
)
def test_worked_example(target, bounds):
    # S at (0.6, 1.2) is .3 / (.3 + .3); c_high climbs until .25 c / (.25 c + .3) >= .54
    assert _bounds(BalanceClipBounds(target=target), _example()) == pytest.approx(bounds)


def test_worked_example_of_the_code():
    # P = 1.2, N = 0.6, Q = 2
    assert _bounds(CODE, _example()) == pytest.approx((0.6, 1.2))
    harder = BalanceClipBounds(CODE.low, CODE.high, target=2.1, source_form="code")
    assert _bounds(harder, _example())[0] == pytest.approx(0.8)  # the first loop only lowers Q
    batch = flat_batch(
        (6,),
        log_ratio_T=[math.log(r) for r in (1.5, 1.0, 1.3, 0.5, 0.7, 1.0)],
        logp_T=[-1.0] * 6,
        advantage_T=[1.0] * 3 + [-1.0] * 3,
    )
    far = BalanceClipBounds((0.6, 0.8, 0.2), (1.2, 1.2, 0.1), target=1.4, source_form="code")
    # Q falls from 3.4 / 2.3 = 1.478 at c_low 0.6 to 3.4 / 2.6 = 1.308 at 0.8
    assert _bounds(far, batch) == pytest.approx((0.6, 1.2))
    further = BalanceClipBounds((0.6, 0.8, 0.2), (1.2, 1.2, 0.1), target=1.5, source_form="code")
    assert _bounds(further, batch) == pytest.approx((0.8, 1.2))


def _paper_loop(part, ratio, weight, advantage):
    low, high = part.low[0], part.high[0]

    def share():
        pairs = zip(ratio, weight, advantage, strict=True)
        s = [w * a * (min(r, high) if a > 0 else max(r, low)) for r, w, a in pairs]
        good = sum(x for x in s if x > 0)
        return good / (good - sum(x for x in s if x < 0))

    while share() < part.target and low + part.low[2] <= part.low[1] + 1e-9:
        if high + part.high[2] <= part.high[1] + 1e-9:
            high += part.high[2]
        else:
            low += part.low[2]
    return low, high


def _code_loop(part, ratio, weight, advantage):
    low, high = part.low[0], part.high[0]

    def balance():
        pairs = zip(ratio, weight, advantage, strict=True)
        s = [a * (min(r, high) if a >= 0 else max(r, low)) for r, _, a in pairs]
        bad = -sum(x for x in s if x < 0)
        return sum(x for x in s if x > 0) / (bad + 1e-8) if bad > 0 else math.inf

    while balance() < part.target and low < part.low[1]:
        low = min(low + part.low[2], part.low[1])
    while balance() < part.target and high < part.high[1]:
        high = min(high + part.high[2], part.high[1])
    return low, high


@pytest.mark.parametrize("form", ["paper", "code"])
@pytest.mark.parametrize("target", [0.05, 0.45, 0.5, 0.52, 0.55, 0.9, 1.0, 1.1, 1.2, 5.0])
def test_matches_the_published_loops(form, target):
    seen = set()
    for seed in range(6):
        batch = ragged_batch(seed, groups=(4, 4), unscored=())
        x_T = (batch["logp_T"] - batch["logp_old_T"]) * 2
        batch = batch.set(log_ratio_T=x_T)
        low, high = ((0.6, 0.9, 0.02), (1.2, 3.0, 0.05)) if form == "paper" else (
            (0.6, 0.83, 0.05), (1.2, 2.03, 0.1)
        )  # fmt: skip
        part = BalanceClipBounds(low, high, target, source_form=form)
        rows = batch["mask_T"].nonzero().squeeze(1).tolist()
        ratio = [math.exp(float(x_T[t])) for t in rows]
        weight = [math.exp(float(batch["logp_behavior_T"][t])) for t in rows]
        advantage = [float(batch["advantage_T"][t]) for t in rows]
        loop = _paper_loop if form == "paper" else _code_loop
        expected = loop(part, ratio, weight, advantage)
        assert _bounds(part, batch) == pytest.approx(expected, abs=1e-9)
        seen.add(expected)
    assert (seen == {(low[0], high[0])}) == (target == 0.05)  # nothing to search for
    if 0.45 <= target <= 0.55:
        assert len(seen) > 1


def test_equals_clip_both_sides_when_there_is_nothing_to_search():
    batch = ragged_batch(1, unscored=())
    batch = batch.set(log_ratio_T=(batch["logp_T"] - batch["logp_old_T"]) * 4)
    part = BalanceClipBounds((0.8, 0.8, 1.0), (1.3, 1.3, 1.0), target=9.0, dual_clip_c=1.5)
    rows_T = batch["mask_T"]
    expected = run(ClipBothSides(0.2, 0.3, 1.5), batch)
    torch.testing.assert_close(run(part, batch).value[rows_T], expected.value[rows_T])


def test_gradient():
    batch = ragged_batch(3, unscored=())
    rows_T = batch["mask_T"]
    x_T = (batch["logp_T"] - batch["logp_old_T"])[rows_T]
    logp_T, advantage_T = batch["logp_T"][rows_T], batch["advantage_T"][rows_T]
    part = BalanceClipBounds(target=0.55)

    def value(x_T):
        return part(x_T, logp_T, advantage_T, torch.ones_like(x_T).bool()).value.sum()

    torch.testing.assert_close(gradient(value, x_T), slope(value, x_T), atol=1e-8, rtol=1e-6)


def test_edges():
    good = flat_batch((2,), log_ratio_T=[0.5, 0.1], logp_T=[-1.0] * 2, advantage_T=[1.0, 2.0])
    for part in (BalanceClipBounds(target=0.99), CODE):
        assert _bounds(part, good)[1] == pytest.approx(1.2)
        silent = good.set(gradient_T=torch.zeros(2, dtype=torch.bool))
        assert _bounds(part, silent) == pytest.approx((0.6, 1.2))
    bad = good.set(advantage_T=-good["advantage_T"])
    assert _bounds(BalanceClipBounds(), bad) == pytest.approx((0.9, 3.0))
    assert _bounds(CODE, bad) == pytest.approx((0.8, 2.0))
    BalanceClipBounds(high=(2.0, 3.0, 2e-5))  # 50,000 bounds
    with pytest.raises(UserError, match="low has more than 100000 bounds"):
        BalanceClipBounds(low=(0.0, 1.0, 1e-6))
    with pytest.raises(UserError, match="high"):
        BalanceClipBounds(high=(1.2, 3.0, 0.0))
    with pytest.raises(UserError, match="source_form"):
        BalanceClipBounds(source_form="verl")
