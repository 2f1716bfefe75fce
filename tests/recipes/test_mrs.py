import math

import pytest
import torch
from builders import NAN, flat_batch, ragged_batch, run, stages, tokens_of

from strop import functional
from strop.method import writing
from strop.parts.selection.drop_mismatched_rollouts import DropMismatchedRollouts
from strop.recipes.mrs import mrs
from strop.recipes.trloo import trloo
from strop.support.errors import UserError


def kept(ratios, mask=None, turns=None, **params):
    """Tokens with gradient, of rows of log-ratios l = logp_old - logp_roll."""
    log_ratio = torch.tensor(ratios, dtype=torch.float64)
    mask = torch.ones(log_ratio.shape).bool() if mask is None else mask
    old = torch.full_like(log_ratio, -1.5)
    more = {} if turns is None else {"turn_ids": torch.tensor(turns)}
    gradient, counts = functional.selection(
        "mrs", advantages=torch.ones(len(ratios)), mask=mask, params=params,
        logp_old=old, logp_roll=old - log_ratio, **more,
    )  # fmt: skip
    assert counts.equal(gradient)
    return gradient.tolist()


def test_worked_example():
    # mean 0.000375, w 1.000375: stays; mean 0.0025, w 1.002503: goes
    rows = [(0.002, 0.0, -0.001, 0.0005), (0.01, 0.0, 0.0, 0.0)]
    assert kept(rows) == [[True] * 4, [False] * 4]
    assert kept(rows, hi=1.003) == [[True] * 4] * 2
    assert kept(rows, lo=1.001, hi=1.003) == [[False] * 4, [True] * 4]


def test_the_veto_takes_one_turn_and_the_band_a_whole_rollout():
    low = math.log(1e-5)
    row = (low, 0.0, -low, 0.0)  # mean 0
    assert kept([row], turns=[[0, 0, 1, 1]]) == [[False, False, True, True]]
    assert kept([row], turns=[[0, 0, 1, 1]], veto=1e-6) == [[True] * 4]
    assert kept([row]) == [[False] * 4]  # one turn
    assert kept([(0.01, 0.0, 0.0, 0.0)], turns=[[0, 0, 1, 1]]) == [[False] * 4]
    # the bound of 20 nats is on the mean: exp(20) is still far outside, inf is not
    assert kept([(500.0, 300.0)], lo=0.0, hi=math.exp(20.1)) == [[True, True]]


def test_reduces_to_no_correction():
    algorithm, plain = mrs(lo=0.0, hi=math.inf, veto=0.0), trloo()
    batch = ragged_batch(3)
    batch = batch.set(reward_K=torch.randn(batch.size("K"), dtype=torch.float64))
    batch = batch.set(reward_B=batch["reward_B"].nan_to_num())
    ours, theirs = stages(algorithm, batch), stages(plain, batch)
    for name in ("advantage_T", "gradient_T", "denominator_T"):
        assert ours[name].equal(theirs[name])
    assert writing.describe(mrs())["terms"] == writing.describe(trloo())["terms"]


def test_against_a_loop_and_metrics():
    part = DropMismatchedRollouts(lowest=0.8, highest=1.1, veto=0.4)
    batch = ragged_batch(5, groups=(4, 5, 3), num_turns=(1, 3))
    difference_T = batch["logp_old_T"] - batch["logp_sampler_T"]
    expected = torch.zeros(batch.size("T"), dtype=torch.bool)
    dropped, vetoed, turns = 0, set(), set()
    for i in range(batch.size("B")):
        rows = tokens_of(batch, i)
        weight = math.exp(sum(float(difference_T[t]) for t in rows) / len(rows))
        dropped += not 0.8 <= weight <= 1.1
        for t in rows:
            turns.add(int(batch["turn_T"][t]))
            if float(difference_T[t].exp()) < 0.4:
                vetoed.add(int(batch["turn_T"][t]))
        for t in rows:
            expected[t] = 0.8 <= weight <= 1.1 and int(batch["turn_T"][t]) not in vetoed
    found = run(part, batch)
    assert found.value.gradient_T.equal(expected)
    assert 0 < dropped < batch.size("B")
    assert found.metrics == pytest.approx(
        {
            "mismatch/dropped_fraction": dropped / batch.size("B"),
            "mismatch/vetoed_fraction": len(vetoed) / len(turns),
        }
    )


def test_tokens_that_no_engine_drew_count_nowhere():
    batch = flat_batch(
        (2, 2), logp_old_T=[-1.0, -1.0, -1.0, -1.0], logp_sampler_T=[NAN, -1.0, NAN, NAN]
    )
    found = run(DropMismatchedRollouts(), batch)
    assert found.value.gradient_T.all()
    assert found.metrics["mismatch/dropped_fraction"] == 0


@pytest.mark.parametrize("fields", [{"lowest": -1.0}, {"highest": -0.1}, {"veto": -1.0}])
def test_bounds_are_ratios(fields):
    with pytest.raises(UserError, match="must be at least 0"):
        DropMismatchedRollouts(**fields)
